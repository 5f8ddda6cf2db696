// The search field above a timeline: counts, the kernels with the most time, and steps from one match to the next.
const searchField = (() => {
  const MAX_NAMES = 6;

  // elements: { input, summary, list, previous, next, clear }
  function create(elements, getTimeline) {
    const { input, summary, list } = elements;
    let waiting = null;

    const show = (query) => {
      const timeline = getTimeline(), matches = timeline.search(query);
      summary.textContent = "";
      list.replaceChildren();
      for (const name of ["previous", "next", "clear"]) elements[name].hidden = !matches || (name !== "clear" && !matches.count);
      if (!matches) return;
      const events = matches.count, kernels = new Set(matches.byName.map(({ name }) => name)).size;
      summary.textContent = events
        ? `${events.toLocaleString("en")} event${events > 1 ? "s" : ""} of ${kernels} kernel${kernels > 1 ? "s" : ""}, `
          + `${matches.ms.toFixed(3)} ms summed`
        : "nothing on the GPU has this in its name, label, module, range or operator, or is as long";
      if (matches.hostCount) summary.textContent += `; ${matches.hostCount.toLocaleString("en")} range${matches.hostCount > 1 ? "s" : ""} of the host`;
      charts.announce(summary.textContent);
      list.replaceChildren(...matches.byName.slice(0, MAX_NAMES).map(({ name, label, count, ms, longest }) => {
        const entry = document.createElement("li"), button = document.createElement("button");
        button.type = "button";
        button.title = `${name}\nshow the longest`;
        button.textContent = runEvents.shortName(name);
        button.onclick = () => timeline.select(longest, { reveal: true });
        entry.append(button, ` ${label} · ${count.toLocaleString("en")} × · ${ms.toFixed(3)} ms`);
        return entry;
      }));
      if (matches.byName.length > MAX_NAMES) {
        const more = document.createElement("li");
        more.textContent = `and ${matches.byName.length - MAX_NAMES} more`;
        list.append(more);
      }
    };
    const set = (query) => { input.value = query; show(query); };
    input.oninput = () => { clearTimeout(waiting); waiting = setTimeout(() => show(input.value), 150); };
    input.onkeydown = (event) => {
      if (event.key === "Enter") {
        event.preventDefault();
        clearTimeout(waiting);
        if (getTimeline().state.query !== input.value) show(input.value);
        getTimeline().stepMatch(event.shiftKey ? -1 : 1);
      } else if (event.key === "Escape") set("");
    };
    // The slash leads to the search from anywhere on the page.
    document.addEventListener("keydown", (event) => {
      const isTyping = event.target.closest?.("input, select, textarea, [contenteditable]");
      if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || isTyping) return;
      event.preventDefault();
      input.scrollIntoView({ block: "center" });
      input.focus({ preventScroll: true });
    });
    elements.previous.onclick = () => getTimeline().stepMatch(-1);
    elements.next.onclick = () => getTimeline().stepMatch(1);
    elements.clear.onclick = () => set("");
    return { set };
  }

  return { create };
})();
