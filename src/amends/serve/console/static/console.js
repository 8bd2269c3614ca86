/* The console's own script: live updates, keys, dialogs, times, copy buttons. Everything that decides works without it.

   Live. A page that follows changes has #live with hx-sse:connect on /live?after=PLACE (see live.py). A message says that
   something has changed; the page then asks for its own address again (header HX-Request: only the content is sent) and
   replaces each element that has an id and the attribute data-live by the element of the same id. So nothing is ever
   added twice, whatever a lost connection or a restarted server repeats. Updates pause while the page is hidden, a dialog
   is open, or somebody pressed "Live". */
(() => {
  "use strict";
  const $ = (selector, within = document) => within.querySelector(selector);
  const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];

  // ---- Times: "12 s ago", as html.py says it

  const UNITS = [["s", 1, 60], ["min", 60, 3600], ["h", 3600, 86400], ["d", 86400, 86400 * 60], ["mo", 86400 * 30, 86400 * 730], ["y", 86400 * 365, Infinity]];
  function ago(moment) {
    const away = (Date.now() - moment) / 1000, s = Math.abs(away);
    if (s < 1) return "now";
    const [unit, size] = UNITS.find(([, , until]) => s < until);
    const text = `${Math.floor(s / size)} ${unit}`;
    return away > 0 ? `${text} ago` : `in ${text}`;
  }
  function tick() {
    for (const one of $$("time[data-ago]")) {
      const text = ago(Date.parse(one.dateTime));
      if (one.textContent !== text) one.textContent = text;
    }
  }
  setInterval(tick, 1000);

  // ---- Live

  let isPaused = false, isDue = false, isLoading = false, staleSince = null, last = 0;
  const WAIT_MS = 700;

  function say(text) { const place = $("#said"); if (place) place.textContent = text; }
  function isBusy() { return isPaused || document.hidden || $$("dialog[open]").some((one) => one.id !== "drawer"); }

  async function refresh() {
    if (isBusy()) { isDue = true; return; }
    if (isLoading) { isDue = true; return; }
    isLoading = true; isDue = false; last = Date.now();
    try {
      const answer = await fetch(location.href, { headers: { "HX-Request": "true", Accept: "text/html" }, cache: "no-store" });
      if (answer.status === 401) { stale("You are logged out. Load the page again to log in."); return; }
      if (!answer.ok) return;
      const made = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const fresh of $$("[data-live][id]", made)) replace(document.getElementById(fresh.id), fresh);
      tick();
      document.dispatchEvent(new CustomEvent("amends:refreshed"));
    } catch { /* the stream notices that the server is away */ }
    finally { isLoading = false; if (isDue) schedule(); }
  }
  function schedule() { setTimeout(refresh, Math.max(0, WAIT_MS - (Date.now() - last))); }

  // htmx's morph changes only what differs: the focus, a selection, scrolling and open details stay as they are.
  let morph = null;
  window.htmx?.registerExtension("amends-live", { init: (api) => { morph = api.morph; } });

  function replace(old, fresh) {
    if (!old) return;
    const at = document.activeElement;
    if (old.contains(at) && /^(INPUT|TEXTAREA|SELECT)$/.test(at.tagName)) return; // somebody is typing there
    for (const one of $$(".is-current[id], details[open][id]", old)) {
      const same = fresh.querySelector(`#${CSS.escape(one.id)}`);
      if (one.matches(".is-current")) same?.classList.add("is-current");
      if (one.matches("details")) same?.setAttribute("open", "");
    }
    // Times go on by themselves: only a new moment is a change.
    for (const one of $$("time[data-ago]", fresh)) one.textContent = ago(Date.parse(one.dateTime));
    const next = document.importNode(fresh, true);
    if (old.isEqualNode(next)) return;
    if (morph) {
      const holder = document.createDocumentFragment();
      holder.append(next);
      morph(old, holder, false);
    } else old.replaceWith(next);
  }

  function stale(text) {
    const place = $("#stale");
    if (!place) return;
    staleSince ??= new Date();
    place.textContent = text ?? `Not connected: what you see is stale since ${staleSince.toTimeString().slice(0, 8)}. Trying again…`;
    place.hidden = false;
    name();
    say(place.textContent);
  }
  function connected() {
    const place = $("#stale"), wasStale = staleSince !== null;
    staleSince = null;
    if (place) place.hidden = true;
    name();
    if (wasStale) { say("Connected again."); refresh(); }
  }
  function name() {
    for (const one of $$("[data-pause]")) {
      one.setAttribute("aria-pressed", String(isPaused));
      one.classList.toggle("is-stale", staleSince !== null);
      $("[data-pause-word]", one).textContent = isPaused ? "Paused" : staleSince ? "Offline" : "Live";
    }
  }
  function pause(paused) {
    isPaused = paused;
    name();
    say(paused ? "Updates are paused." : "Updates go on.");
    if (!paused) refresh();
  }
  function follow() {
    const live = $("#live");
    if (!live) return;
    listen(live);
    for (const one of $$("[data-pause]")) one.hidden = false;
    document.addEventListener("visibilitychange", () => { if (!document.hidden && isDue) refresh(); });
    // hx-sse reconnects by itself, but not if the very first connection fails.
    setInterval(() => {
      const now = $("#live");
      if (document.hidden || now._htmx?.sse || !window.htmx) return;
      stale();
      const next = now.cloneNode(false);
      now.replaceWith(next);
      listen(next);
      htmx.process(next);
    }, 5000);
  }
  function listen(live) {
    live.addEventListener("change", (event) => { event.stopPropagation(); schedule(); });
    live.addEventListener("hello", connected);
    live.addEventListener("problem", () => stale("You are logged out, or may not see this any more. Load the page again."));
    const lost = (event) => {
      if (document.hidden) return;
      stale(event.detail?.status === 401 ? "You are logged out. Load the page again to log in." : undefined);
    };
    live.addEventListener("htmx:sse:error", lost);
    live.addEventListener("htmx:error", lost);
    live.addEventListener("htmx:sse:close", lost);
    live.addEventListener("htmx:sse:after:connection", connected);
  }

  // What is under way on the server, and no event of the ledger tells of: ask again while it is shown.
  setInterval(() => { if ($("[data-poll]")) refresh(); }, 1000);

  // ---- Dialogs

  document.addEventListener("click", (event) => {
    const opener = event.target.closest("[data-dialog]");
    if (opener) {
      const form = opener.closest("form");
      if (form && !form.reportValidity()) { event.preventDefault(); return; }
      const dialog = document.getElementById(opener.dataset.dialog);
      if (dialog?.showModal) { event.preventDefault(); dialog.showModal(); $("[data-close]", dialog)?.focus(); }
      return;
    }
    const close = event.target.closest("[data-close]"), closed = close?.closest("dialog");
    if (closed) { event.preventDefault(); closed.close(); return; }
    if (event.target.closest("[data-keys]")) { $("#keys")?.showModal(); return; }
    const toggle = event.target.closest("[data-pause]");
    if (toggle) { pause(!isPaused); return; }
    if (event.target.matches?.("dialog.drawer")) event.target.close(); // its backdrop
    const copy = event.target.closest("[data-copy]");
    if (copy) {
      navigator.clipboard?.writeText(copy.dataset.copy).then(() => {
        copy.classList.add("is-done"); say("Copied.");
        setTimeout(() => copy.classList.remove("is-done"), 1200);
      });
    }
  });
  // Requests of htmx that change something carry what a form has as its field csrf.
  document.addEventListener("htmx:config:request", (event) => {
    const request = event.detail?.ctx?.request;
    if (request && document.body.dataset.csrf) request.headers["X-CSRF-Token"] = document.body.dataset.csrf;
  });

  // A form is sent once: a second click before the answer would be refused, or worse, not be.
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.method !== "post" || form.dataset.download !== undefined) return; // after a download the page is still there
    if (form.dataset.sent) { event.preventDefault(); return; }
    form.dataset.sent = "yes";
    setTimeout(() => { for (const one of $$("button", form)) one.disabled = true; });
  });
  window.addEventListener("pageshow", () => { for (const form of $$("form[data-sent]")) { delete form.dataset.sent; for (const one of $$("button", form)) one.disabled = false; } });
  document.addEventListener("close", () => { if (isDue) schedule(); }, true);

  // ---- The drawer: a link with data-drawer="KEY" opens in it; #KEY in the address opens it again. On the page of a run the
  // address says ?call=KEY instead, which the server shows opened without JavaScript, too.

  function openDrawer(nodes) {
    const drawer = $("#drawer"), place = $("#drawer-content");
    place.replaceChildren(...nodes);
    if (!drawer.open) drawer.showModal();
    drawer.scrollTop = 0;
    if (window.htmx) htmx.process(place);
    tick();
  }
  function sayOpened(key) {
    const here = new URL(location.href);
    if (document.body.dataset.page !== "run") here.hash = key ? encodeURIComponent(key) : "";
    else if (key) here.searchParams.set("call", key);
    else here.searchParams.delete("call");
    if (here.href !== location.href) history.replaceState(null, "", here);
  }

  document.addEventListener("click", async (event) => {
    const link = event.target.closest("a[data-drawer]");
    if (!link || event.metaKey || event.ctrlKey || event.shiftKey || event.button !== 0) return;
    event.preventDefault();
    const to = link.getAttribute("href"); // the href of a link inside of a drawing is no text
    const answer = await fetch(to, { headers: { "HX-Request": "true", Accept: "text/html" }, cache: "no-store" }).catch(() => null);
    if (!answer?.ok) { location.href = to; return; }
    const made = new DOMParser().parseFromString(await answer.text(), "text/html");
    openDrawer([...made.body.childNodes].map((one) => document.importNode(one, true)));
    if (link.dataset.drawer) sayOpened(link.dataset.drawer);
  });

  $("#drawer")?.addEventListener("close", () => sayOpened(""));
  function reopen() {
    const opened = $("#open-drawer"), key = decodeURIComponent(location.hash.slice(1));
    if (opened) { opened.remove(); openDrawer([...opened.childNodes]); } // modal, so that a key closes it
    else if (key) $(`a[data-drawer="${CSS.escape(key)}"]`)?.click();
  }

  // ---- The filter box: suggests words of the grammar for the word at the cursor

  for (const box of $$("[data-filter][data-words]")) {
    const words = JSON.parse(box.dataset.words), list = $("#filter-words");
    let shown = [], at = -1;
    box.setAttribute("role", "combobox");
    box.setAttribute("aria-expanded", "false");
    box.setAttribute("aria-controls", list.id);
    box.setAttribute("aria-autocomplete", "list");
    const current = () => { const end = box.selectionStart ?? box.value.length, start = box.value.lastIndexOf(" ", end - 1) + 1; return [start, end, box.value.slice(start, end)]; };
    const close = () => { list.hidden = true; at = -1; box.setAttribute("aria-expanded", "false"); box.removeAttribute("aria-activedescendant"); };
    const mark = (next) => {
      at = next;
      [...list.children].forEach((one, place) => one.setAttribute("aria-selected", String(place === at)));
      if (at >= 0) { box.setAttribute("aria-activedescendant", list.children[at].id); list.children[at].scrollIntoView({ block: "nearest" }); }
      else box.removeAttribute("aria-activedescendant");
    };
    const open = () => {
      const [, , word] = current();
      shown = words.filter(([one]) => one.startsWith(word) && one !== word);
      if (!shown.length) { close(); return; }
      list.replaceChildren(...shown.map(([one, meaning], place) => {
        const item = document.createElement("li"), said = document.createElement("code"), hint = document.createElement("span");
        item.id = `filter-word-${place}`; item.setAttribute("role", "option"); item.setAttribute("aria-selected", "false");
        said.textContent = one; hint.textContent = meaning;
        item.append(said, hint);
        return item;
      }));
      list.hidden = false; box.setAttribute("aria-expanded", "true"); mark(-1);
    };
    const choose = (place) => {
      const [start, end] = current(), word = shown[place][0], isWhole = !/[:.]$/.test(word);
      box.setRangeText(isWhole ? `${word} ` : word, start, end, "end");
      box.focus();
      if (isWhole) close(); else open();
    };
    box.addEventListener("input", open);
    box.addEventListener("focus", open);
    box.addEventListener("blur", () => setTimeout(close, 120));
    list.addEventListener("mousedown", (event) => { event.preventDefault(); const item = event.target.closest("li"); if (item) choose([...list.children].indexOf(item)); });
    box.addEventListener("keydown", (event) => {
      if (list.hidden) return;
      if (event.key === "ArrowDown") mark(Math.min(shown.length - 1, at + 1));
      else if (event.key === "ArrowUp") mark(Math.max(-1, at - 1));
      else if ((event.key === "Enter" || event.key === "Tab") && at >= 0) choose(at);
      else if (event.key === "Escape") { close(); event.stopPropagation(); }
      else return;
      event.preventDefault();
    });
  }

  // ---- Keys: none of them decides anything

  const GO = { r: "runs", a: "approvals", d: "doubts", c: "costs", t: "tools", w: "workers" };
  let before = "", beforeAt = 0;
  function rows() { return $$("[data-rows] tbody tr, [data-rows] > li").filter((row) => $("[data-row], a", row)); }
  function move(by) {
    const all = rows();
    if (!all.length) return;
    const at = all.findIndex((row) => row.classList.contains("is-current"));
    const next = all[Math.min(all.length - 1, Math.max(0, at < 0 ? 0 : at + by))];
    all.forEach((row) => row.classList.toggle("is-current", row === next));
    const link = $("[data-row], a", next);
    link.focus({ preventScroll: true });
    next.scrollIntoView({ block: "nearest" });
  }
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.metaKey || event.ctrlKey || event.altKey) return;
    if (/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) || event.target.isContentEditable) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if ($$("dialog[open]").length) return;
    const wasG = before === "g" && Date.now() - beforeAt < 1500;
    before = event.key; beforeAt = Date.now();
    if (wasG && GO[event.key]) { $(`[data-nav="${GO[event.key]}"]`)?.click(); event.preventDefault(); return; }
    if (event.key === "j") move(1);
    else if (event.key === "k") move(-1);
    else if (event.key === "Enter" && event.target === document.body) $("tr.is-current [data-row], tr.is-current a")?.click();
    else if (event.key === "/") { const box = $("[data-filter]"); if (!box) return; box.focus(); box.select(); }
    else if (event.key === "p" && $("#live")) pause(!isPaused);
    else if (event.key === "?") $("#keys")?.showModal();
    else return;
    event.preventDefault();
  });

  // ---- Begin

  document.documentElement.classList.add("has-js");
  const here = $(".nav [aria-current]"), bar = here?.closest("nav"); // on a phone the navigation scrolls
  if (bar && bar.scrollWidth > bar.clientWidth) bar.scrollLeft = here.offsetLeft - bar.offsetLeft - (bar.clientWidth - here.offsetWidth) / 2;
  tick();
  follow();
  reopen();
})();
