// The live part of a page: what the server sends takes its place. Without this the page is whole, and stands still.
"use strict";
(() => {
  const live = document.getElementById("live");
  const pause = document.getElementById("pause");
  const heard = document.getElementById("heard");
  if (!live || !window.EventSource) return;

  let source = null;
  let isPaused = false;
  let told = "";

  const now = () => new Date().toISOString().slice(11, 19);

  // A screen reader says what changed, and not the time at each second.
  const say = (what, text) => {
    heard.setAttribute("aria-live", what === told ? "off" : "polite");
    told = what;
    heard.textContent = text;
  };
  const nameOf = (each) => each.getAttribute("href") || each.getAttribute("aria-label") || each.textContent;

  // Rows of a long table that have a word; it is typed once, and holds for what the server sends later.
  const words = {};
  const filter = () => {
    for (const field of live.querySelectorAll("[data-filter]")) {
      const id = field.dataset.filter;
      if (words[id] === undefined) words[id] = field.value;
      field.value = words[id];
      field.oninput = () => { words[id] = field.value; sift(id); };
      sift(id);
    }
  };
  const sift = (id) => {
    const word = words[id].trim().toLowerCase();
    for (const row of document.getElementById(id).querySelectorAll("tbody tr")) {
      row.hidden = word !== "" && !row.textContent.toLowerCase().includes(word);
    }
  };

  const show = (html) => {
    const active = document.activeElement;
    const inside = active && live.contains(active);
    const kept = inside ? nameOf(active) : null;
    const alerts = new Set([...live.querySelectorAll(".error")].map((each) => each.textContent));
    const scrolled = [...live.querySelectorAll(".scroll, pre")].map((part) => [part.scrollLeft, part.scrollTop]);
    const caret = inside && active.dataset.filter ? active.selectionStart : null;
    live.innerHTML = html; // the server escapes every value
    for (const each of live.querySelectorAll(".error")) {
      if (alerts.has(each.textContent)) each.removeAttribute("role"); // it was said already
    }
    filter();
    [...live.querySelectorAll(".scroll, pre")].forEach((part, at) => {
      if (scrolled[at]) [part.scrollLeft, part.scrollTop] = scrolled[at];
    });
    if (caret !== null) {
      const field = live.querySelector(`[data-filter="${CSS.escape(active.dataset.filter)}"]`);
      if (field) { field.focus({ preventScroll: true }); field.setSelectionRange(caret, caret); }
      return;
    }
    if (kept === null) return;
    for (const each of live.querySelectorAll("[href], [aria-label], button")) {
      if (nameOf(each) === kept) {
        each.focus({ preventScroll: true });
        return;
      }
    }
  };

  const listen = () => {
    if (source) source.close();
    source = new EventSource(live.dataset.events);
    source.onmessage = (message) => {
      const html = JSON.parse(message.data);
      if (html !== null) show(html);
      say("live", `Live, as of ${now()} UTC.`);
      live.dataset.heard = String(Number(live.dataset.heard || 0) + 1);
    };
    source.onerror = () => {
      if (source.readyState === EventSource.CLOSED) {
        say("full", `This page stands still since ${now()} UTC: the console, or a proxy before it, does not keep it live. Load it again.`);
      } else if (told !== "lost") {
        say("lost", `The console does not answer; what stands here is older than ${now()} UTC.`);
      }
    };
  };

  filter();
  pause.hidden = false;
  pause.addEventListener("click", () => {
    isPaused = !isPaused;
    pause.textContent = isPaused ? "Go on refreshing" : "Stop refreshing";
    if (isPaused) {
      source.close();
      say("paused", `Stands still since ${now()} UTC.`);
    } else {
      listen();
    }
  });
  // A browser opens six connections to one address: tabs that nobody sees leave them to those that one does.
  document.addEventListener("visibilitychange", () => {
    if (source) source.close();
    if (!document.hidden && !isPaused) listen();
  });
  window.addEventListener("pagehide", () => source && source.close());
  window.addEventListener("pageshow", (event) => event.persisted && !isPaused && listen());
  if (!document.hidden) listen();
})();
