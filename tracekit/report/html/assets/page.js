// The page: its two timelines (schedule and lanes), and links from its tables into them.
(async () => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id), said = byId("said");
  const charts = {}; // drawn timelines by name
  let openLanes = null; // (rank, { step, from, to, only }) shows a rank's lanes; set once the lanes are drawn

  const timeText = (all, i) => {
    const start = all.start[i], end = all.end[i];
    return `${start.toFixed(3)} to ${end.toFixed(3)} ms\n${(end - start).toFixed(3)} ms long`;
  };

  // Group boxes by the row they are outlined in. rowAndPart(i) returns [row, part], or nothing for no outline.
  const outlinesByRow = (all, rowAndPart) => {
    const outlines = new Map();
    for (let i = 0; i < all.count; i++) {
      const target = rowAndPart(i);
      if (!target) continue;
      const [row, part] = target;
      if (!outlines.has(row)) outlines.set(row, []);
      outlines.get(row).push([all.start[i], all.end[i], part]);
    }
    return outlines;
  };

  async function drawSchedule({ causes, choices }) {
    const hidden = new Set(), select = byId("schedule-which"); // the select is there only if there is a choice
    const show = async (choice) => {
      const { kinds, rows, ranks, step, cells, sections: packed, end_ns, shaded } = choices[choice];
      const unpackSection = async ({ name, boxes: section }) => ({ name, boxes: await boxes.unpack(section) });
      const sections = await Promise.all(packed.map(unpackSection));
      const lanesOfStep = (data.lanes?.steps || []).find((entry) => entry.step === step || step === null);
      // Where time 0 of the pipeline lies in a rank's lanes, in ns; undefined or null if the rank has no lanes here.
      const startInLanes = (rank) => lanesOfStep?.ranks[rank]?.cells_at_ns;

      const describe = ({ section, row, boxes: all, i }) => {
        const isCell = all.stage[i] >= 0, pair = all.part[i] ? " (overlapped pair)" : "";
        const lines = [`${kinds[all.kind[i]].name}${pair} · ${rows[row]} · ${section.name}`];
        if (isCell) lines.push(`stage ${all.stage[i]}, micro-batch ${all.microbatch[i]}`);
        lines.push(timeText(all, i));
        if (all.waiting && isCell) {
          const { after, cause, wait, path } = all.waiting;
          if (after[i] >= 0) lines.push(`after ${cells[after[i]]}`);
          if (cause[i] >= 0) lines.push(`then held up ${wait[i].toFixed(3)} ms: ${causes[cause[i]]}`);
          if (path[i] > 0) lines.push(`on the critical path: ${path[i].toFixed(3)} ms`);
          if (startInLanes(ranks[row]) != null) lines.push("double-click: its moment in the lanes");
        }
        return lines.join("\n");
      };
      const open = ({ section, row, boxes: all, i }) => {
        const startNs = startInLanes(ranks[row]);
        if (section.name !== "measured" || startNs == null) return;
        const shift = startNs / 1e6;
        openLanes(ranks[row], { step: lanesOfStep.step, from: all.start[i] + shift, to: all.end[i] + shift });
      };
      const outlines = new Map(sections.map(({ boxes: all }) => [
        all, outlinesByRow(all, (i) => all.waiting?.path[i] > 0 && [all.row[i], all.part[i]]),
      ]));
      const hasPath = [...outlines.values()].some((ofSection) => ofSection.size);
      charts.schedule = timelines.draw(byId("schedule-chart"), {
        rows, kinds, sections, end: end_ns / 1e6, hidden, describe, open,
        label: (all, i) => (all.microbatch[i] >= 0 ? all.microbatch[i] : ""),
        outlines: hasPath ? (all) => outlines.get(all) : null,
      });
      const setShown = (...options) => charts.schedule.setShown(...options);
      timelines.drawLegend(byId("schedule-legend"), kinds, hidden, setShown, { shaded, path: hasPath });
    };
    if (select) {
      select.replaceChildren(...choices.map(({ name }, choice) => new Option(name, choice)));
      select.onchange = () => { hidden.clear(); show(Number(select.value)); };
    }
    await show(0);
  }

  async function drawLanes({ kinds, rows, steps, memory_top }) {
    const hidden = new Set(); // kinds that are switched off stay off when another rank or step is chosen
    const unpacked = new Map(); // lanes of a rank → their boxes
    const [rankSelect, stepSelect, phaseSelect] = ["rank", "step", "phase"].map((name) => byId(`lanes-${name}`));
    const stepOptions = steps.map(({ step }, index) => new Option(step ?? "all", index));
    stepSelect.replaceChildren(...stepOptions.sort((a, b) => a.text - b.text));
    stepSelect.value = 0; // the step that the schedule shows
    stepSelect.parentElement.hidden = steps.length < 2;
    const ranksOfStep = () => steps[stepSelect.value].ranks, chosenLanes = () => ranksOfStep()[rankSelect.value];

    const offerRanks = () => {
      const before = rankSelect.value, ranks = Object.keys(ranksOfStep()).sort((a, b) => a - b);
      rankSelect.replaceChildren(...ranks.map((rank) => new Option(rank, rank)));
      rankSelect.value = ranks.includes(before) ? before : ranks[0];
      rankSelect.parentElement.hidden = ranks.length < 2;
    };
    const offerPhases = ({ phases }) => {
      const before = phaseSelect.value;
      phaseSelect.replaceChildren(new Option("all", ""), ...phases.map(({ name }) => new Option(name, name)));
      phaseSelect.value = phases.some(({ name }) => name === before) ? before : "";
      phaseSelect.parentElement.hidden = phases.length < 2;
    };
    const zoomToPhase = () => {
      const { phases, end_ns } = chosenLanes(), phase = phases.find(({ name }) => name === phaseSelect.value);
      if (phase) charts.lanes.zoom(100 * phase.start_ns / end_ns, 100 * phase.end_ns / end_ns);
      else charts.lanes.zoom(0, 100);
    };
    const show = async () => {
      const rank = rankSelect.value, lanes = chosenLanes();
      if (!unpacked.has(lanes)) unpacked.set(lanes, await boxes.unpack(lanes.boxes));
      if (lanes !== chosenLanes()) return; // another rank was chosen meanwhile
      const all = unpacked.get(lanes), hasPath = lanes.path.length > 0;
      const describe = ({ row, i }) => {
        const kind = kinds[all.kind[i]].name;
        // In the lanes, the column microbatch holds the number of a path's description, and stage the pass.
        const description = lanes.path[all.microbatch[i]], pass = ["forward", "backward"][all.stage[i]];
        if (description !== undefined) return `${kind} · on the critical path\n${timeText(all, i)}\n${description}`;
        return `${kind}${pass ? ` (${pass} pass)` : ""} · ${rows[row]}\n${timeText(all, i)}`;
      };
      // A piece of the path is outlined in the lane of its label; time of the host has no such lane.
      const outlines = outlinesByRow(all, (i) => {
        const { row, part } = kinds[all.kind[i]];
        return all.microbatch[i] >= 0 && row !== undefined && [row, part];
      });
      charts.lanes = timelines.draw(byId("lanes-chart"), {
        rows, kinds, sections: [{ name: `rank ${rank}`, boxes: all }], end: lanes.end_ns / 1e6, hidden, describe,
        outlines: hasPath ? () => outlines : null,
        memory: lanes.memory && { points: lanes.memory, top: memory_top },
      });
      const setShown = (...options) => charts.lanes.setShown(...options);
      timelines.drawLegend(byId("lanes-legend"), kinds, hidden, setShown, { path: hasPath });
      offerPhases(lanes);
      zoomToPhase();
    };
    rankSelect.onchange = show;
    stepSelect.onchange = () => { offerRanks(); show(); };
    phaseSelect.onchange = zoomToPhase;
    offerRanks();
    await show();

    // Show a rank's lanes: of a step, zoomed to a moment (from, to in ms), or with only one label.
    openLanes = async (rank, { step, from, to, only } = {}) => {
      const index = steps.findIndex((entry) => entry.step === step);
      if (index >= 0) stepSelect.value = index;
      offerRanks();
      if (rank !== undefined && rank in ranksOfStep()) rankSelect.value = rank;
      if (from !== undefined) phaseSelect.value = "";
      if (only !== undefined) {
        hidden.clear();
        kinds.forEach(({ name }, kind) => { if (name !== only) hidden.add(kind); });
      }
      await show();
      if (from !== undefined) {
        const end = chosenLanes().end_ns / 1e6, margin = (to - from) / 2;
        charts.lanes.zoom(100 * (from - margin) / end, 100 * (to + margin) / end);
      }
      byId("lanes").scrollIntoView();
      byId("lanes-chart").focus({ preventScroll: true });
      const stepText = steps.length > 1 ? `, step ${steps[stepSelect.value].step}` : "";
      said.textContent = `lanes of rank ${rankSelect.value}${stepText}${only === undefined ? "" : `: ${only} alone`}`;
    };
  }

  // Open or close a kernel's explanation in the row below it, or open it and scroll to it.
  function explainKernel(number, { toggle }) {
    const button = document.querySelector(`[data-why="${number}"]`), row = byId(`why-${number}`);
    if (!button || !row) return;
    row.hidden = toggle ? !row.hidden : false;
    button.setAttribute("aria-expanded", String(!row.hidden));
    if (!toggle) button.closest("tr").scrollIntoView({ block: "center" });
    said.textContent = row.hidden ? "closed" : row.querySelector("dd").textContent;
  }

  // Describe a rank of the heat map: its figures, a link to its lanes or, without them, the command that makes them.
  function describeHeatCell(cell) {
    const line = byId("heat-said"), link = line.querySelector("a"), command = line.querySelector(".command");
    const rank = cell.dataset.cell, hasLanes = cell.classList.contains("in"), title = cell.parentElement.title;
    line.hidden = false;
    line.firstElementChild.textContent = title;
    link.hidden = !hasLanes;
    link.dataset.rank = rank;
    if (command) {
      const text = `tracekit analyze ${shellQuote(data.asked)} --ranks ${rank} -o rank-${rank}.html`;
      command.hidden = hasLanes;
      command.firstElementChild.textContent = text;
      command.querySelector("button").dataset.copy = text;
    }
    said.textContent = title;
  }
  const shellQuote = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`);

  async function copyCommand(button) {
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
    } catch { // a page opened from a file may not write to the clipboard: select the text instead
      const text = button.closest(".command")?.querySelector("code");
      if (text) getSelection().selectAllChildren(text);
    }
    button.classList.add("done");
    setTimeout(() => button.classList.remove("done"), 1500);
    said.textContent = "copied";
  }

  // Links of the tables: a rank or a moment opens its lanes, a label its lanes alone, a kernel its explanation.
  document.addEventListener("click", async (event) => {
    const closest = (name) => event.target.closest(`[data-${name}]`);
    const toNumber = (text) => (text === undefined ? undefined : Number(text));
    const [why, kernel, rank, label, cell, copy] = ["why", "kernel", "rank", "label", "cell", "copy"].map(closest);
    if (why) {
      explainKernel(why.dataset.why, { toggle: true });
    } else if (kernel) {
      event.preventDefault();
      explainKernel(kernel.dataset.kernel, { toggle: false });
    } else if (rank && openLanes) {
      event.preventDefault();
      const { step, from, to } = rank.dataset;
      await openLanes(rank.dataset.rank, { step: toNumber(step), from: toNumber(from), to: toNumber(to) });
    } else if (label && openLanes) {
      event.preventDefault();
      await openLanes(undefined, { only: label.dataset.label });
    } else if (cell) {
      describeHeatCell(cell);
    } else if (copy) {
      event.preventDefault();
      await copyCommand(copy);
    }
  });

  try {
    if (data.schedule) await drawSchedule(data.schedule);
    if (data.lanes && data.lanes.steps.length) await drawLanes(data.lanes);
  } catch (problem) {
    for (const chart of document.querySelectorAll(".chart")) {
      chart.replaceChildren(
        "The timeline could not be drawn in this viewer; open the file in a current browser. "
        + "Every figure stands in the tables.",
      );
    }
    throw problem;
  }
  const resize = () => Object.values(charts).forEach((chart) => chart.resize());
  const redraw = () => { resize(); Object.values(charts).forEach((chart) => chart.render()); };
  addEventListener("resize", resize);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  matchMedia("print").addEventListener("change", redraw);
  document.documentElement.dataset.ready = "true";
})();
