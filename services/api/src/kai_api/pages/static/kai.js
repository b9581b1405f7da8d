// What a page can do without a script, it does without: links, forms, tables. This adds: following the log's end,
// travelling with the slider, and the choice of light or dark.
"use strict";

const news = document.getElementById("news");
let loading = null;
let source = null;
// A page of several logs is shown anew from time to time: so many seconds.
const refresh = Number(document.body.dataset.refresh);

function time() { return document.getElementById("time"); }

// Makes one tree of elements like another without replacing what is equal: focus, scroll and open details stay.
function liken(here, there) {
  if (here.isEqualNode(there)) return;
  if (here.nodeType !== 1 || here.nodeName !== there.nodeName || here.id !== there.id) {
    here.replaceWith(there.cloneNode(true));
    return;
  }
  const kept = (name) => (here.nodeName === "DETAILS" && name === "open") || (here.id === "slider" && name === "hidden");
  for (const { name } of [...here.attributes]) if (!there.hasAttribute(name) && !kept(name)) here.removeAttribute(name);
  for (const { name, value } of [...there.attributes]) {
    if (here.getAttribute(name) !== value && !kept(name)) here.setAttribute(name, value);
  }
  if (here.nodeName === "INPUT" && here !== document.activeElement) here.value = there.getAttribute("value") || "";
  const [old, fresh] = [[...here.childNodes], [...there.childNodes]];
  fresh.forEach((node, at) => { if (at < old.length) liken(old[at], node); else here.append(node.cloneNode(true)); });
  old.slice(fresh.length).forEach((node) => node.remove());
}

// Shows another address of this page in place.
async function show(address, history) {
  if (loading) loading.abort();
  const mine = loading = new AbortController();
  if (history) document.body.classList.add("busy");
  try {
    const answer = await fetch(address, { signal: mine.signal, headers: { Accept: "text/html", "X-Whole": "yes" } });
    // What is shown stays, while what is newer cannot be had.
    if (!history && answer.status >= 500) throw new Error(answer.statusText);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (mine.signal.aborted) return;
    if (!page.getElementById("main")) { location.assign(address); return; }
    const order = (parts) => parts.map((name) => [document.querySelector(name), page.querySelector(name)]);
    for (const [here, there] of order([".side nav", "#time", "#main"])) {
      if (here && there) liken(here, there); else if (here) here.remove();
    }
    document.title = page.title;
    if (history) window.history[history]({}, "", address);
    prepare();
    return true;
  } finally {
    if (loading === mine) { loading = null; document.body.classList.remove("busy"); }
  }
}

function say(text) { if (news.textContent !== text) news.textContent = text; }

// Says on every page that follows something how old its data is, once nothing is heard of them any more.
let heard = Date.now(), cut = false;
const lost = document.getElementById("lost");
function hear(well) {
  if (well) heard = Date.now();
  if (well === cut) say(well ? "" : "The connection is lost; trying again.");
  cut = !well;
  age();
}
function age() {
  const s = Math.round((Date.now() - heard) / 1000), follows = source || refresh;
  lost.hidden = !follows || (!cut && s < 40);
  lost.textContent = `Disconnected, data ${s < 120 ? `${s} s` : `${Math.round(s / 60)} min`} old`;
  document.body.classList.toggle("lost", !lost.hidden);
}
setInterval(age, 1000);

// Follows the log's end while the page is live and seen; shows it anew at most once a second, and a page that is slow
// to make less often.
function follow() {
  if (source) source.close();
  source = null;
  age();
  const here = time();
  if (!here || !("live" in here.dataset) || document.hidden) return;
  let shown = Number(here.dataset.position), head = shown, due = 0, rest = 0;
  const mine = source = new EventSource(`/clusters/${encodeURIComponent(here.dataset.cluster)}/news?after=${shown}`);
  function awaitNews() {
    if (head > shown && !due) due = setTimeout(refreshed, Math.max(300, rest - performance.now()));
  }
  async function refreshed() {
    if (mine !== source) return;
    const wanted = head, began = performance.now();
    try { await show(location.href, null); shown = wanted; hear(true); } catch (error) { if (error.name !== "AbortError") hear(false); }
    rest = performance.now() + Math.max(1000, 5 * (performance.now() - began));
    due = 0;
    if (mine === source) awaitNews();
  }
  mine.onopen = () => { if (mine === source) hear(true); };
  mine.onmessage = (event) => {
    hear(true);
    head = Number(event.data);
    awaitNews();
  };
  mine.addEventListener("services", (event) => {
    hear(true);
    const plain = (text) => JSON.stringify(JSON.parse(text));
    // A page of an error has no time.
    if (time() && plain(event.data) !== plain(time().dataset.unwell)) show(location.href, null).catch(() => {});
  });
  mine.onerror = () => {
    if (mine !== source) return;
    hear(false);
    // Refused: perhaps the session has ended, and the page leads to where one logs in.
    if (mine.readyState === EventSource.CLOSED) setTimeout(() => { if (mine === source) travel(location.href, null); }, 5000);
  };
}
document.addEventListener("visibilitychange", follow);

function at(position) {
  const address = new URL(location.href);
  address.searchParams.set("at", position);
  return address.href;
}

// A pointer on a chart moves the slider: the page goes to the time there, and the chart keeps its span.
function brush(event) {
  const chart = event.target.closest && event.target.closest("svg.chart");
  if (!chart || !(event.buttons & 1)) return;
  const { left, width } = chart.getBoundingClientRect();
  const [began, ended] = [Number(chart.dataset.began), Number(chart.dataset.ended)];
  const text = (us) => `${new Date(us / 1000).toISOString().slice(0, 19)}Z`;
  const address = new URL(location.href);
  if (!address.searchParams.has("until")) address.searchParams.set("until", time().hasAttribute("data-live") ? time().dataset.position : address.searchParams.get("at"));
  address.searchParams.set("at", text(began + (ended - began) * Math.min(1, Math.max(0, (event.clientX - left) / width))));
  clearTimeout(brush.due);
  brush.due = setTimeout(() => travel(address.href, "pushState").catch(() => {}), 120);
}
document.addEventListener("pointerdown", brush);
document.addEventListener("pointermove", brush);

function prepare() {
  const slider = document.getElementById("slider");
  if (!slider) return;
  slider.hidden = false;
  if (slider.dataset.ready) return;
  slider.dataset.ready = "yes";
  let due = 0;
  slider.addEventListener("input", () => {
    slider.setAttribute("aria-valuetext", `position ${slider.value} of ${slider.max}`);
    if (source) source.close();
    source = null;
    clearTimeout(due);
    due = setTimeout(() => travel(at(slider.value), "pushState").catch(() => {}), 120);
  });
}

async function travel(address, history) {
  if (source) source.close();
  source = null;
  try {
    if (await show(address, history)) say(document.querySelector("#time .now").textContent.replace(/\s+/g, " ").trim());
  } catch (error) {
    if (error.name === "AbortError") return;
    say("The page could not be loaded.");
  }
  follow();
}

// Steps in time stay on the page.
document.addEventListener("click", (event) => {
  const link = event.target.closest && event.target.closest("a[href]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  const address = new URL(link.href);
  if (address.origin !== location.origin || address.pathname !== location.pathname || address.hash) return;
  event.preventDefault();
  travel(link.href, "pushState");
});
window.addEventListener("popstate", () => travel(location.href, null));

const theme = document.getElementById("theme");
const dark = () => (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
const name = () => { theme.textContent = dark() ? "Light theme" : "Dark theme"; };
theme.hidden = false;
theme.addEventListener("click", () => {
  const chosen = dark() ? "light" : "dark";
  document.documentElement.dataset.theme = chosen;
  document.cookie = `theme=${chosen}; path=/; max-age=31536000; samesite=lax`;
  name();
});
name();
prepare();
follow();
// What takes long to make comes behind the first paint.
if (document.querySelector("[data-more]")) show(location.href, null).catch(() => {});
if (refresh) setInterval(() => { if (!document.hidden) show(location.href, null).then(() => hear(true), () => hear(false)); }, 1000 * refresh);

// An address that logs in has its token behind `#`, which no server sees.
const login = document.getElementById("login");
if (login && location.hash.length > 1) {
  login.token.value = location.hash.slice(1);
  history.replaceState(null, "", location.pathname + location.search);
  login.submit();
}
