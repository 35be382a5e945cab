"use strict";
// Replaces the sections of the page that changed, every two seconds while the page is looked at, and the whole page
// where a link leads to another one. What the reader opened, and where the keyboard is, stays as it was. The server
// escapes all text; what it says to an order is put into the page as text.
(() => {
  const EVERY_MS = 2000;
  const main = document.querySelector("main");
  const lost = document.getElementById("lost");
  const button = document.getElementById("pause");
  const shown = new Map();
  let paused = false;
  let tag = "";
  let turn = 0; // of the page that is looked at: an answer about an earlier one is dropped
  let timer = 0;
  let here = location.pathname + location.search;

  const fragment = (url) => "/fragment" + (url.pathname === "/" ? "" : url.pathname) + url.search;

  async function ask(url) {
    const headers = tag ? { "If-None-Match": tag } : {};
    const answer = await fetch(fragment(url), { cache: "no-store", headers, signal: AbortSignal.timeout(8000) });
    if (answer.status === 304) return null;
    if (!answer.ok && answer.status !== 404) throw new Error(String(answer.status));
    const text = await answer.text();
    if (!text.startsWith("<section")) throw new Error("no page");
    return { text, tag: answer.headers.get("ETag") || "" };
  }

  function remember() {
    shown.clear();
    for (const section of main.querySelectorAll("section[id]")) shown.set(section.id, section.innerHTML);
  }

  // By what it is found again where the page was made anew: its id, or where it leads.
  const known = (item) => item.id || item.getAttribute("href");

  function refocus(place, wanted) {
    const again = wanted && [...place.querySelectorAll("[id], a")].find((item) => known(item) === wanted);
    if (again) again.focus({ preventScroll: true });
    // Where it is gone or hidden the next Tab goes on in the page, not at its beginning.
    if (!again || document.activeElement !== again) main.focus({ preventScroll: true });
  }

  function swap(text) {
    const fresh = document.createElement("template");
    fresh.innerHTML = text;
    const sections = [...fresh.content.querySelectorAll("section[id]")];
    if (sections.length !== shown.size || sections.some((section) => !shown.has(section.id))) return false;
    for (const section of sections) {
      const source = section.innerHTML;
      if (shown.get(section.id) === source) continue;
      shown.set(section.id, source);
      const old = document.getElementById(section.id);
      const open = new Map([...old.querySelectorAll("details[id]")].map((item) => [item.id, item.open]));
      const focused = old.contains(document.activeElement) ? document.activeElement : null;
      const places = [...old.querySelectorAll(".scroll")].map((item) => item.scrollLeft);
      for (const item of section.querySelectorAll("details[id]")) {
        if (open.has(item.id)) item.open = open.get(item.id);
      }
      old.replaceWith(section);
      section.querySelectorAll(".scroll").forEach((item, index) => { item.scrollLeft = places[index] || 0; });
      if (focused) refocus(section, known(focused));
    }
    return true;
  }

  async function update() {
    clearTimeout(timer);
    const mine = turn;
    if (!paused && !document.hidden) {
      try {
        const told = await ask(new URL(location.href));
        if (mine === turn && !paused && told) {
          if (!swap(told.text)) { main.innerHTML = told.text; remember(); }
          tag = told.tag;
        }
        lost.hidden = true;
      } catch {
        lost.hidden = mine !== turn;
      }
    }
    if (mine === turn) timer = setTimeout(update, EVERY_MS);
  }

  // Another page, without leaving this one: who signed in stays so.
  async function go(url, push) {
    const mine = ++turn;
    clearTimeout(timer);
    tag = "";
    try {
      const told = await ask(url);
      if (mine !== turn) return;
      if (push) history.pushState(null, "", url);
      here = url.pathname + url.search;
      main.innerHTML = told.text;
      tag = told.tag;
      remember();
      document.title = `${(main.querySelector("h1") || main.querySelector("[aria-current]"))?.textContent || "Sentinel"} · Sentinel`;
      main.focus({ preventScroll: true });
      scrollTo(0, 0);
      lost.hidden = true;
    } catch {
      location.assign(url);
      return;
    }
    timer = setTimeout(update, EVERY_MS);
  }

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href]");
    if (!link || !main.contains(link) || link.dataset.plain !== undefined || event.button || event.metaKey
      || event.ctrlKey || event.shiftKey || event.altKey || link.origin !== location.origin) return;
    event.preventDefault();
    go(new URL(link.href), true);
  });
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.getAttribute("role") !== "search") return;
    event.preventDefault();
    const url = new URL(form.action);
    const text = form.elements.q.value.trim();
    if (text) url.searchParams.set("q", text);
    go(url, true);
  });
  addEventListener("popstate", () => {  // a part of this page is no other page
    if (location.pathname + location.search !== here) go(new URL(location.href), false);
  });

  button.hidden = false;
  button.addEventListener("click", () => {
    paused = !paused;
    button.setAttribute("aria-pressed", String(paused));
    button.textContent = paused ? "Go on updating" : "Pause updates";
    if (!paused) update();
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) { turn++; update(); } });

  // ---- orders: for who signed in, and asked once more before anything is done

  const sign = document.getElementById("sign");
  if (sign) {
    let token = "";
    const signing = document.getElementById("signing");
    const ordering = document.getElementById("ordering");
    let wanted = null;
    let asker = ""; // the button that opened the dialog: the page may be made anew under it

    async function post(path, body, bearer) {
      const headers = { "Content-Type": "application/json", Authorization: `Bearer ${bearer}` };
      const options = { method: "POST", headers, body: JSON.stringify(body), cache: "no-store" };
      const answer = await fetch(path, { ...options, signal: AbortSignal.timeout(15000) });
      const told = await answer.json().catch(() => ({ sentence: `The controller answered ${answer.status}.` }));
      return { ok: answer.ok, status: answer.status, told };
    }

    function signed(name) {
      document.body.classList.toggle("signed", Boolean(name));
      sign.textContent = name ? `Sign out ${name}` : "Sign in";
      if (!name) token = "";
    }

    // One dialog: `work` gives the sentence that keeps it open, or "" where it is done.
    function dialog(box, work) {
      const told = box.querySelector(".told");
      const doing = box.querySelector(".do");
      box.querySelector(".no").addEventListener("click", () => box.close());
      box.addEventListener("close", () => { told.textContent = ""; told.classList.remove("good"); });
      box.querySelector("form").addEventListener("submit", async (event) => {
        event.preventDefault();
        doing.disabled = true;
        told.textContent = "…";
        try {
          told.textContent = await work(box);
        } catch {
          told.textContent = "Sentinel does not answer.";
        }
        doing.disabled = false;
        if (!told.textContent) box.close();
      });
    }

    dialog(signing, async () => {
      const field = document.getElementById("token");
      const { ok, told } = await post("/api/v1/me", {}, field.value.trim());
      if (!ok) return told.sentence;
      token = field.value.trim();
      field.value = "";
      signed(told.name);
      return "";
    });
    dialog(ordering, async (box) => {
      const why = document.getElementById("why");
      const { ok, status, told } = await post("/api/v1/orders", { ...wanted, why: why.value }, token);
      if (status === 401) signed("");
      if (!ok || !told.done) return told.sentence;
      why.value = "";
      box.close();
      said(told.sentence);
      turn++;
      update();
      return "";
    });

    function said(sentence) {
      const note = document.getElementById("said");
      note.textContent = sentence;
      note.hidden = false;
      setTimeout(() => { if (note.textContent === sentence) note.hidden = true; }, 10000);
    }

    ordering.addEventListener("close", () => refocus(main, asker));
    sign.hidden = false;
    sign.addEventListener("click", () => {
      if (token) signed("");
      else signing.showModal();
    });
    document.addEventListener("click", (event) => {
      const act = event.target.closest("button[data-order]");
      if (!act) return;
      wanted = { order: act.dataset.order, node: act.dataset.node };
      asker = known(act);
      ordering.querySelector("h2").textContent = act.dataset.node ? `${act.textContent} ${act.dataset.node}` : act.textContent;
      ordering.querySelector(".what").textContent = act.dataset.what;
      ordering.querySelector(".do").textContent = act.textContent;
      ordering.showModal();
    });
  }

  remember();
  timer = setTimeout(update, EVERY_MS);
})();
