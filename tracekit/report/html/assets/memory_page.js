// The page of memory snapshots.
(async () => {
  const { memory } = JSON.parse(document.getElementById("data").textContent);
  sortableTables.enhance();
  if (memory) await memoryView.create(memory);
  document.documentElement.dataset.ready = "true";
})();
