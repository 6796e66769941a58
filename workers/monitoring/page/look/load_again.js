// Chromium aborts its downloads when a network interface of its machine appears or disappears, for
// instance a container's, and does not retry. Without one of its scripts the page would stay empty.
// So the page is reloaded after a pause, a limited number of times.
(() => {
  const KEY = "tiercel loaded again";
  const MOST = 10;
  const PAUSE_MS = 500;
  const before = Number(sessionStorage.getItem(KEY)) || 0;
  let broken = false;
  const look = (event) => {
    if (broken || !event.target.matches?.("script, link[rel=modulepreload]")) return;
    broken = true;
    if (before >= MOST) return;
    sessionStorage.setItem(KEY, before + 1);
    setTimeout(() => location.reload(), PAUSE_MS);
  };
  // Such an error does not bubble, so the listener captures it.
  addEventListener("error", look, true);
  addEventListener("load", () => {
    if (!broken) sessionStorage.removeItem(KEY);
  });
  // The back button changes the address only; the page shows what the address names.
  addEventListener("popstate", () => location.reload());
})();
