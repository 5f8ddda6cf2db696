// The page of an analysis: its schedule chart, its timeline, and links from tables into the timeline.
(async () => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const drawn = {}; // charts by name
  const main = data.timelines[0]?.timeline; // of the main role
  let timeline = null;
  const MIN_WINDOW_SHARE = 0.05; // of a step: the least that is shown around the place of a finding

  const timeText = (boxes, i) => {
    const start = boxes.start[i], end = boxes.end[i];
    return `${start.toFixed(3)} to ${end.toFixed(3)} ms\n${(end - start).toFixed(3)} ms long`;
  };

  // ---- the schedule: measured above ideal
  async function drawSchedule({ causes, choices }) {
    const hidden = new Set(), select = byId("schedule-which"); // the select is there only if there is a choice
    const show = async (choice) => {
      const { kinds, rows, ranks, step, cells, sections, end_ns, shaded, origin_ns } = choices[choice];
      const allKinds = [...kinds, { name: "", colour: "ink" }];
      // The timeline's time at which the pipeline starts, in ms: both axes count from the same moment.
      const shift = main ? Number(BigInt(origin_ns) - BigInt(main.origin_ns)) / 1e6 : 0;
      let hasPath = false;
      const groups = await Promise.all(sections.map(async ({ name, boxes: packed }) => {
        const boxes = await columns.unpackTimes(packed), isMeasured = name === "measured";
        for (let i = 0; i < boxes.count; i++) { boxes.start[i] += shift; boxes.end[i] += shift; }
        const indices = rows.map(() => []);
        for (let i = 0; i < boxes.count; i++) indices[boxes.row[i]].push(i);
        hasPath ||= isMeasured && boxes.path_ns?.some((time) => time > 0);
        const describe = (i) => {
          const isCell = boxes.stage[i] >= 0, pair = boxes.part[i] ? " (overlapped pair)" : "";
          const lines = [`${kinds[boxes.kind[i]].name}${pair} · ${rows[boxes.row[i]]} · ${name}`];
          if (isCell) lines.push(`stage ${boxes.stage[i]}, micro-batch ${boxes.microbatch[i]}`);
          lines.push(timeText(boxes, i));
          if (boxes.cause && isCell) {
            if (boxes.after[i] >= 0) lines.push(`after ${cells[boxes.after[i]]}`);
            if (boxes.cause[i] >= 0) lines.push(`then held up ${(boxes.wait_ns[i] / 1000).toFixed(3)} ms: ${causes[boxes.cause[i]]}`);
            if (boxes.path_ns[i] > 0) lines.push(`on the critical path: ${(boxes.path_ns[i] / 1000).toFixed(3)} ms`);
            if (main) lines.push("double-click: its moment on the timeline");
          }
          return lines.join("\n");
        };
        const height = Math.max(7, Math.min(22, 560 / rows.length / sections.length));
        return {
          name,
          rows: rows.map((rowName, row) => ({
            name: rowName, height, describe, isMeasured, rankNumber: ranks[row], boxes, minTextPx: 9, centred: true,
            tracks: tracks.makePartTracks(boxes, indices[row]),
            text: (i) => (boxes.microbatch[i] >= 0 ? String(boxes.microbatch[i]) : ""),
          })),
        };
      }));
      // A bar below each measured cell that the critical path runs through.
      const overlay = (context, { toX, yOf, ink, gutter, width }) => {
        if (!hasPath) return;
        context.fillStyle = ink;
        for (const row of groups[0].rows) {
          for (const track of row.tracks) {
            for (const i of track.index) {
              if (!(row.boxes.path_ns[i] > 0)) continue;
              const left = Math.max(gutter, toX(row.boxes.start[i])), right = Math.min(gutter + width, toX(row.boxes.end[i]) - 1);
              if (right > left) context.fillRect(left, yOf(row) + row.height - 2.5, right - left, 2.5);
            }
          }
        }
      };
      const open = ({ row, box, boxes }) => {
        if (row.isMeasured && main) showMoment({ rank: row.rankNumber, from: boxes.start[box], to: boxes.end[box] });
      };
      const ideal = groups.find(({ name }) => name === "ideal"), isCell = (row, i) => row.boxes.stage[i] >= 0;
      const idealEnd = Math.max(shift, ...(ideal?.rows ?? []).map((row) => row.tracks.reduce(
        (latest, track) => track.index.reduce((end, i) => (isCell(row, i) ? Math.max(end, row.boxes.end[i]) : end), latest), shift)));
      const end = shift + end_ns / 1e6;
      offerFit(shift, idealEnd, end);
      drawn.schedule = charts.create(byId("schedule-chart"), { groups, kinds: allKinds, begin: shift, end, hidden, overlay, open });
      charts.drawLegend(byId("schedule-legend"), drawn.schedule, kinds,
        [shaded ? "lighter: later chunk" : "", hasPath ? "bar below: on the critical path" : ""].filter(Boolean).join(" · "));
    };
    if (select) {
      select.replaceChildren(...choices.map(({ name }, choice) => new Option(name, choice)));
      select.onchange = () => { hidden.clear(); show(Number(select.value)); };
    }
    await show(0);
  }

  // Where the ideal is much shorter than the run, a button zooms to its length, and back.
  function offerFit(begin, idealEnd, end) {
    const MAX_SHARE = 0.5, button = byId("schedule-fit"), names = ["fit ideal", "show all"];
    button.parentElement.hidden = !(idealEnd > begin && idealEnd - begin < MAX_SHARE * (end - begin));
    [button.textContent] = names;
    button.onclick = () => {
      const isFitted = button.textContent === names[1];
      drawn.schedule.setWindow(begin, isFitted ? end : idealEnd + 0.02 * (idealEnd - begin));
      button.textContent = names[Number(!isFitted)];
    };
  }

  // ---- the timeline
  async function drawTimeline(roles) {
    const runs = await Promise.all(roles.map(({ timeline: packed }) => runEvents.load(packed)));
    const sources = runs.map((run, i) => ({ run, name: roles[i].role, role: roles[i].role, schedule: i ? null : data.schedule }));
    const [run] = runs, { steps } = main, hasRoles = roles.length > 1;
    const everything = [Math.min(...roles.map((role) => role.timeline.begin_ns)) / 1e6, Math.max(...roles.map((role) => role.timeline.end_ns)) / 1e6];
    const scheduled = steps.find(({ step }) => step === data.schedule?.choices[0].step) ?? steps[0];
    const around = ({ from_ms, to_ms }) => [from_ms - (to_ms - from_ms) * 0.01, to_ms + (to_ms - from_ms) * 0.01];
    const stepSelect = byId("timeline-step"), phaseSelect = byId("timeline-phase");
    // The step that the window lies in, or "" if it shows several.
    const shownStep = () => {
      const [from, to] = timeline.chart.window(), middle = (from + to) / 2;
      const i = steps.findIndex(({ from_ms, to_ms }) => from_ms <= middle && middle <= to_ms && to - from < 1.5 * (to_ms - from_ms));
      return i < 0 ? "" : String(i);
    };
    let field = null, remember = null;
    timeline = await timelines.create({
      element: byId("timeline-chart"), legend: byId("timeline-legend"), roleButtons: byId("timeline-roles"),
      rankButtons: byId("timeline-ranks"), laneButtons: byId("timeline-lanes"), openButtons: byId("timeline-open"),
      rankField: byId("timeline-rank-field"), selectsArea: () => byId("select-area").getAttribute("aria-pressed") === "true",
      area: (figures) => detailsPanel.drawArea(byId("details"), timeline, figures), sources, different: new Map((data.different ?? []).map(({ rank, text }) => [rank, text])), window: hasRoles ? everything : around(scheduled),
      shade: steps.length > 1 ? steps.map(({ step, from_ms }) => ({ from: from_ms, name: step === null ? "" : `step ${step}` })) : [],
      details: (selection) => detailsPanel.draw(byId("details"), timeline, selection, data.path),
      host: (source, rank, i) => detailsPanel.drawHost(byId("details"), timeline, source, rank, i),
      shared: (lane, source, i, partners) => detailsPanel.drawShared(byId("details"), timeline, lane, source, i, partners),
      changed: () => remember?.(),
      setQuery: (query) => field.set(query), focusSearch: () => byId("find").focus(),
    });
    field = searchField.create({
      input: byId("find"), summary: byId("find-summary"), list: byId("find-list"), previous: byId("find-previous"),
      next: byId("find-next"), clear: byId("find-clear"),
    }, () => timeline);
    timeline.find = field.set;
    byId("select-area").onclick = ({ currentTarget: button }) => {
      button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
      byId("timeline-chart").classList.toggle("selecting", button.getAttribute("aria-pressed") === "true");
    };
    timeline.link = () => `${location.href.split("#")[0]}#${timeline.viewText()}`;
    drawn.timeline = timeline.chart;
    byId("path-longest").hidden = !main.path;
    byId("path-longest").onclick = () => timeline.selectLongestOnPath();
    byId("copy-link").onclick = (event) => detailsPanel.copy(timeline.link(), event.currentTarget);

    // Selectors: a step, and a phase of the pipeline within it.
    stepSelect.replaceChildren(new Option("all", ""), ...steps.map(({ step }, i) => new Option(step ?? "the recording", i)));
    stepSelect.value = steps.length > 1 && !hasRoles ? steps.indexOf(scheduled) : "";
    stepSelect.parentElement.hidden = steps.length < 2;
    const chosenStep = () => steps[stepSelect.value] ?? steps[0];
    const phasesOf = () => run.ranks.find(({ rank }) => timeline.state.ranks.has(rank))?.phases.filter(([step]) => step === chosenStep().step) ?? [];
    const offerPhases = () => {
      phaseSelect.replaceChildren(new Option("all", ""), ...phasesOf().map(([, name], i) => new Option(name, i)));
      phaseSelect.parentElement.hidden = phasesOf().length < 2;
    };
    stepSelect.onchange = () => {
      const step = steps[stepSelect.value];
      timeline.chart.setWindow(...(step ? around(step) : everything));
      offerPhases();
    };
    phaseSelect.onchange = () => {
      const phase = phasesOf()[phaseSelect.value];
      timeline.chart.setWindow(...(phase ? [phase[2], phase[3]] : around(chosenStep())));
    };
    offerPhases();
    timeline.showStep = (number) => {
      const index = steps.findIndex(({ step }) => step === number);
      if (index < 0) return;
      stepSelect.value = index;
      stepSelect.onchange();
    };
    if (location.hash.startsWith("#view:")) {
      timeline.applyView(decodeURI(location.hash));
      byId("timeline").scrollIntoView();
    }
    remember = timelines.keepInHistory(() => timeline, () => { stepSelect.value = shownStep(); });
  }

  // Show a moment of the timeline: a rank, a step, a stretch of time (ms), one label alone, or a search.
  // The panel of what was selected before closes, or shows the segment of the critical path that is led to.
  function showMoment({ rank, step, from, to, label, find, segment }) {
    timeline.select(null);
    leavePlace();
    if (rank !== undefined && timeline.ranks.includes(rank)) { timeline.setRanks([rank]); timeline.openRank(rank); }
    if (label !== undefined || find === undefined) timeline.showOnly(label === undefined ? null : [label]);
    if (step !== undefined) timeline.showStep(step);
    if (find !== undefined) {
      timeline.setRanks(timeline.ranks);
      // The tables are of the main role.
      timeline.find(data.timelines.length > 1 && !find.includes("role:") ? `${find} role:"=${data.timelines[0].role}"` : find);
    }
    if (segment) {
      const { from_ms, to_ms } = main.steps.find((entry) => entry.step === (step ?? null)) ?? main.steps[0];
      timeline.selectSegment({ rank, from, to, isCell: segment === "cell", pathWindow: [from_ms, to_ms] });
    }
    if (from !== undefined) {
      const margin = (to - from) / 2;
      timeline.chart.setWindow(from - margin, to + margin);
    }
    byId("timeline").scrollIntoView();
    byId("timeline-chart").focus({ preventScroll: true });
    const parts = [rank === undefined ? "all ranks" : `rank ${rank}`, step === undefined ? "" : `step ${step}`, label ? `${label} alone` : "", find ?? ""];
    charts.announce(`timeline of ${parts.filter(Boolean).join(", ")}`);
  }

  // Show a place of a finding: its stretch of a rank is marked, the event that it is (if it is one) is selected, and a line
  // above the chart says what is seen.
  function showPlace(number, index) {
    const finding = data.findings.find((one) => one.number === number), place = finding.places[index];
    const { rank, from_ms: from, to_ms: to, title } = place, [source] = timeline.sources, count = finding.places.length;
    timeline.showOnly(null);
    timeline.setRanks(timeline.ranks);
    timeline.openRank(rank);
    timeline.select(timeline.eventAt(source, rank, from, to));
    timeline.mark({ source, rank, from, to });
    // A short place is shown with what is around it.
    const step = main.steps.find((entry) => from >= entry.from_ms && from <= entry.to_ms) ?? main.steps[0];
    const span = Math.max(2.2 * (to - from), step ? MIN_WINDOW_SHARE * (step.to_ms - step.from_ms) : 0), middle = (from + to) / 2;
    timeline.chart.setWindow(middle - span / 2, middle + span / 2);
    const line = byId("timeline-spot"), [text, previous, next, back] = line.children;
    line.hidden = false;
    const position = count > 1 ? `place ${index + 1} of ${count}: ` : "";
    text.textContent = `Finding ${number}: ${finding.text} (${position}${title})`;
    for (const [button, step] of [[previous, -1], [next, 1]]) {
      button.hidden = count < 2;
      button.onclick = () => showPlace(number, (index + step + count) % count);
    }
    back.href = `#finding-${number}`;
    byId("timeline").scrollIntoView();
    byId("timeline-chart").focus({ preventScroll: true });
    charts.announce(`timeline of ${title}`);
  }
  function leavePlace() {
    byId("timeline-spot").hidden = true;
    timeline.mark(null);
  }

  // A link to a section whose content is folded away opens it.
  function unfold(id) {
    const target = id && byId(decodeURIComponent(id));
    const folded = [target?.querySelector(":scope > details"), target?.closest("details")].filter(Boolean);
    for (const details of folded) details.open = true;
    if (folded.length) target.scrollIntoView();
  }
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    if (link && link.hash.length > 1) unfold(link.hash.slice(1));
  });

  // The navigation marks the section that is read.
  function followSections() {
    const links = new Map([...document.querySelectorAll("nav a")].flatMap((link) => link.dataset.sections.split(" ").map((id) => [id, link])));
    const seen = new Set();
    const watch = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) if (isIntersecting) seen.add(target.id); else seen.delete(target.id);
      const current = [...links.keys()].find((id) => seen.has(id));
      for (const link of links.values()) if (link === links.get(current)) link.setAttribute("aria-current", "true"); else link.removeAttribute("aria-current");
    }, { rootMargin: "-12% 0px -70% 0px" });
    for (const id of links.keys()) watch.observe(byId(id));
  }

  // ---- kernels' explanations, the heat map, and commands
  function explainKernel(number) {
    const button = document.querySelector(`[data-why="${number}"]`), row = byId(`why-${number}`);
    if (!button || !row) return;
    row.hidden = !row.hidden;
    button.setAttribute("aria-expanded", String(!row.hidden));
    charts.announce(row.hidden ? "closed" : row.querySelector("dd, p").textContent);
  }

  // Describe a rank of the heat map: its figures, a link to its lanes or, without them, the command that makes them.
  function describeHeatCell(cell) {
    const line = byId("heat-said"), link = line.querySelector("a"), command = line.querySelector(".command");
    const rank = cell.dataset.cell, isShown = cell.classList.contains("in"), { title } = cell.parentElement;
    line.hidden = false;
    line.firstElementChild.textContent = title;
    link.hidden = !isShown;
    link.dataset.rank = rank;
    if (command) {
      const text = `tracekit analyze ${shellQuote(data.path)} --ranks ${rank} -o rank-${rank}.html`;
      command.hidden = isShown;
      command.firstElementChild.textContent = text;
      command.querySelector("button").dataset.copy = text;
    }
    charts.announce(title);
  }
  const shellQuote = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`);

  // Links of the tables: a rank, a step, a moment, a label or a search is shown on the timeline.
  document.addEventListener("click", (event) => {
    const closest = (name) => event.target.closest(`[data-${name}]`);
    const toNumber = (text) => (text === undefined ? undefined : Number(text));
    const [why, cell, copy, rank, label, row, finding] = ["why", "cell", "copy", "rank", "label", "find", "finding"].map(closest);
    // A row that begins with a moment leads there as a whole.
    const moment = closest("from") ?? (event.target.closest("a, button") ? null : event.target.closest("tr")?.querySelector("th [data-from]"));
    // A number in a row that stands for a set of events: they are searched for.
    const find = row && event.target.closest("td, .shows, .show") && !event.target.closest("a:not(.show), button:not(.shows), .word") ? row : null;
    if (why) explainKernel(why.dataset.why);
    else if (cell) describeHeatCell(cell);
    else if (copy) { event.preventDefault(); detailsPanel.copy(copy.dataset.copy, copy); }
    else if (timeline && finding) {
      event.preventDefault();
      showPlace(Number(finding.dataset.finding), Number(finding.dataset.place));
    } else if (timeline && (rank || label || moment || find)) {
      event.preventDefault();
      const { rank: number, step, from, to, label: name, find: query, segment } = (rank || label || moment || find).dataset;
      showMoment({ rank: toNumber(number), step: toNumber(step), from: toNumber(from), to: toNumber(to), label: name, find: query, segment });
    }
  });

  // The first number of each row that stands for a set of events becomes a button, for keys and screen readers.
  function offerSearches() {
    for (const row of document.querySelectorAll("tr[data-find]")) {
      const cell = [...row.cells].find((one) => one.tagName === "TD" && !one.matches(".word") && !one.querySelector("a, button") && /\d/.test(one.textContent));
      if (!cell) continue;
      const button = document.createElement("button");
      button.type = "button";
      button.className = "shows";
      button.title = "show these events on the timeline";
      button.append(...cell.childNodes);
      cell.append(button);
    }
  }

  try {
    followSections();
    if (main) offerSearches();
    sortableTables.enhance();
    if (data.schedule) await drawSchedule(data.schedule);
    if (main) await drawTimeline(data.timelines);
  } catch (problem) {
    for (const chart of document.querySelectorAll(".chart")) {
      chart.replaceChildren(
        "The timeline could not be drawn in this viewer; open the file in a current browser. "
        + "Every figure stands in the tables.",
      );
    }
    throw problem;
  }
  const resize = () => Object.values(drawn).forEach((chart) => chart.resize());
  addEventListener("resize", resize);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", resize);
  charts.drawOnPaper(() => Object.values(drawn));
  if (data.memory) await memoryView.create(data.memory);
  globalThis.tracekit = { drawn, timeline, showMoment, showPlace }; // for tests and the console
  document.documentElement.dataset.ready = "true";
})();
