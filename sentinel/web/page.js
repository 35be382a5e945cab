"use strict";
// Replaces the sections of the page that changed, every two seconds while the page is looked at.
// What the reader opened, and where the keyboard is, stays as it was. The server escapes all text.
(() => {
  const main = document.querySelector("main");
  const lost = document.getElementById("lost");
  const button = document.getElementById("pause");
  const shown = new Map();
  let paused = false;

  function swap(text) {
    const fresh = document.createElement("template");
    fresh.innerHTML = text;
    for (const section of fresh.content.querySelectorAll("section[id]")) {
      const source = section.innerHTML;
      if (shown.get(section.id) === source) continue;
      shown.set(section.id, source);
      const old = document.getElementById(section.id);
      const open = new Map([...old.querySelectorAll("details[id]")].map((item) => [item.id, item.open]));
      const focus = old.contains(document.activeElement) ? document.activeElement.id : "";
      const places = [...old.querySelectorAll(".scroll")].map((item) => item.scrollLeft);
      for (const item of section.querySelectorAll("details[id]")) {
        if (open.has(item.id)) item.open = open.get(item.id);
      }
      old.replaceWith(section);
      section.querySelectorAll(".scroll").forEach((item, index) => { item.scrollLeft = places[index] || 0; });
      if (focus) document.getElementById(focus)?.focus({ preventScroll: true });
    }
  }

  async function turn() {
    if (!paused && !document.hidden) {
      try {
        const answer = await fetch("/fragment", { cache: "no-store", signal: AbortSignal.timeout(5000) });
        if (!answer.ok) throw new Error(String(answer.status));
        const text = await answer.text();
        if (!paused) swap(text);
        lost.hidden = true;
      } catch {
        lost.hidden = false;
      }
    }
    setTimeout(turn, 2000);
  }

  button.hidden = false;
  button.addEventListener("click", () => {
    paused = !paused;
    button.setAttribute("aria-pressed", String(paused));
    button.textContent = paused ? "Go on updating" : "Pause updates";
  });
  for (const section of main.querySelectorAll("section[id]")) shown.set(section.id, section.innerHTML);
  setTimeout(turn, 2000);
})();
