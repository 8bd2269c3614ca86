from amends.store.memory import MemoryStore
def store_for(url):
    return MemoryStore()
