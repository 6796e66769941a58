// Chromium breaks off whatever it is loading while a network comes or goes on its machine, that of a
// container for instance, and does not take it up again: without one of its scripts the page would
// stay empty. So it is loaded again, in a moment, some times.
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
  // Such an error does not bubble: it is caught on its way down.
  addEventListener("error", look, true);
  addEventListener("load", () => {
    if (!broken) sessionStorage.removeItem(KEY);
  });
})();
