// A real OpenID Connect provider on loopback. It reads its configuration as JSON from standard input and prints "ready".
// It ends when its standard input ends: no test leaves one behind.
import { once } from 'node:events'
import Provider from 'oidc-provider'

process.stdin.setEncoding('utf8')
let text = ''
while (!text.includes('\n')) text += (await once(process.stdin, 'data'))[0]
const said = JSON.parse(text)
const people = said.people

const provider = new Provider(said.issuer, {
  clients: said.clients,
  jwks: said.jwks,
  cookies: { keys: ['a key for tests'] },
  pkce: { required: () => true },
  claims: { openid: ['sub'], email: ['email', 'email_verified'], profile: ['groups', 'org'] },
  conformIdTokenClaims: said.conform,
  enabledJWA: { idTokenSigningAlgValues: ['RS256', 'ES256', 'PS256'] },
  findAccount: (_ctx, id) => people[id] && { accountId: id, claims: async () => ({ sub: id, ...people[id] }) },
})
provider.on('server_error', (_ctx, error) => console.error(error))
const server = provider.listen(new URL(said.issuer).port, '127.0.0.1', () => console.log('ready'))
process.stdin.on('end', () => { server.closeAllConnections(); server.close(); process.exit(0) })
process.stdin.resume()
