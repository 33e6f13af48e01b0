
"use strict";
// Text only ever becomes text nodes: names of models and sessions are other people's.
(() => {
  const PERIOD_MS = 2000;
  const RECENT_MS = 5 * 60 * 1000;
  const $ = (id) => document.getElementById(id);

  const make = (name, attributes = {}, ...children) => {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children.map(String));
    return node;
  };
  const svg = (name, attributes) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return node;
  };

  const count = (n) => n.toLocaleString("en");
  const percent = (part, whole) => (whole > 0 ? `${((100 * part) / whole).toFixed(1)}\u202f%` : "–");
  const bytes = (n) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    while (n >= 1024 && unit < units.length - 1) { n /= 1024; ++unit; }
    return `${unit === 0 || n >= 100 ? Math.round(n) : n.toFixed(1)}\u202f${units[unit]}`;
  };
  const seconds = (s) => {
    if (s === 0) return "0\u202fs";
    if (s < 1e-3) return `${(s * 1e6).toFixed(s < 1e-5 ? 1 : 0)}\u202fµs`;
    if (s < 1) return `${(s * 1e3).toFixed(s < 1e-2 ? 1 : 0)}\u202fms`;
    if (s < 120) return `${s.toFixed(1)}\u202fs`;
    if (s < 7200) return `${(s / 60).toFixed(1)}\u202fmin`;
    if (s < 172800) return `${(s / 3600).toFixed(1)}\u202fh`;
    return `${(s / 86400).toFixed(1)}\u202fd`;
  };

  const table = (element, caption, heads, rows) => {
    // The first column names the row; `text` marks further columns that are no numbers.
    const head = document.createElement("tr");
    heads.forEach(([name, kind], i) =>
      head.append(make("th", { scope: "col", class: i === 0 || kind === "text" ? "text" : "" }, name)));
    const body = document.createElement("tbody");
    for (const cells of rows) {
      const row = document.createElement("tr");
      cells.forEach((cell, i) => row.append(i === 0
        ? make("th", { scope: "row", title: cell }, cell)
        : make("td", { class: heads[i][1] === "text" ? "text" : "" }, cell)));
      body.append(row);
    }
    const thead = document.createElement("thead");
    thead.append(head);
    element.replaceChildren(make("caption", { class: "hidden" }, caption), thead, body);
    element.hidden = rows.length === 0;
  };

  // Draws [unix_ms, value or null]; `top` is the value of the upper edge.
  const chart = (element, points, top, label) => {
    const nodes = [0, 0.5, 1].map((y) =>
      svg("line", { class: "grid", x1: 0, x2: 600, y1: 178 * y + 1, y2: 178 * y + 1 }));
    if (points.length > 1) {
      const from = points[0][0];
      const span = points[points.length - 1][0] - from || 1;
      const x = (t) => ((t - from) / span) * 600;
      const y = (v) => 179 - Math.min(1, v / top) * 178;
      let run = [];
      const flush = () => {
        if (run.length === 0) return;
        if (run.length === 1) run.unshift([Math.max(0, run[0][0] - 4), run[0][1]]);
        const line = run.map(([a, b]) => `${a.toFixed(1)},${b.toFixed(1)}`).join(" L");
        nodes.push(svg("path", { class: "area", d: `M${run[0][0]},179 L${line} L${run[run.length - 1][0]},179 Z` }));
        nodes.push(svg("path", { class: "curve", d: `M${line}` }));
        run = [];
      };
      for (const [t, v] of points) v === null ? flush() : run.push([x(t), y(v)]);
      flush();
    }
    element.setAttribute("aria-label", label);
    element.replaceChildren(...nodes);
  };

  // What happened between each two points.
  const steps = (history, value) => history.slice(1).map((now, i) => [now.unix_ms, value(history[i], now)]);

  const showCharts = (data) => {
    const { stats } = data;
    const history = [...data.history,
      { unix_ms: data.unix_ms, gets: stats.gets, hits: stats.hits, saved_us: stats.saved_us }];
    const minutes = Math.round((data.unix_ms - history[0].unix_ms) / 60000);
    const from = minutes < 1 ? "just started" : `${minutes} min ago`;
    $("ratio-from").textContent = $("saved-from").textContent = from;

    const ratio = steps(history, (a, b) => (b.gets > a.gets ? (b.hits - a.hits) / (b.gets - a.gets) : null));
    const seen = ratio.map(([, v]) => v).filter((v) => v !== null);
    const ratioText = seen.length === 0 ? "No lookups in this time."
      : `Between ${percent(Math.min(...seen), 1)} and ${percent(Math.max(...seen), 1)}; the scale is 0 to 100\u202f%.`;
    $("ratio-note").textContent = ratioText;
    chart($("ratio-chart"), ratio, 1, `Hit ratio over ${minutes} minutes. ${ratioText}`);

    const saved = steps(history, (a, b) =>
      (b.unix_ms > a.unix_ms ? (b.saved_us - a.saved_us) / 1000 / (b.unix_ms - a.unix_ms) : 0));
    const most = Math.max(0, ...saved.map(([, v]) => v));
    const savedText = most === 0 ? "Nothing saved in this time; it needs puts that say their encode cost."
      : `At most ${seconds(most)} of GPU time each second.`;
    $("saved-note").textContent = savedText;
    chart($("saved-chart"), saved, most || 1, `Encode time saved over ${minutes} minutes. ${savedText}`);
    return history;
  };

  const showSummary = (data, history) => {
    const { stats } = data;
    const before = history.find((p) => p.unix_ms >= data.unix_ms - RECENT_MS) || history[0];
    const gets = stats.gets - before.gets;
    const hits = stats.hits - before.hits;
    const memory = stats.tiers.filter((t) => t.tier !== "L3");
    const sum = (name) => memory.reduce((total, tier) => total + tier[name], 0);
    const span = Math.max(1, (data.unix_ms - before.unix_ms) / 1000);
    const figures = [
      ["Hit ratio, last 5 min", percent(hits, gets), `${percent(stats.hits, stats.gets)} since start`],
      ["GPU time saved", seconds(stats.saved_us / 1e6), `${seconds((stats.saved_us - before.saved_us) / 1e6)} in the last 5 min`],
      ["Lookups", `${(gets / span).toFixed(gets / span < 10 ? 1 : 0)} /s`, `${count(stats.gets)} since start`],
      ["Memory pinned", percent(sum("pinned_bytes"), sum("capacity_bytes")),
        stats.quarantined_bytes > 0 ? `${bytes(stats.quarantined_bytes)} by lost sessions`
          : `${bytes(sum("pinned_bytes"))} by ${count(stats.sessions)} sessions`],
    ];
    $("summary").replaceChildren(...figures.map(([name, value, note]) => {
      const box = make("div", { class: "figure" });
      box.append(make("dt", {}, name), make("dd", { class: "value" }, value), make("dd", { class: "quiet" }, note));
      return box;
    }));
  };

  const showTiers = (stats) => {
    const names = { L1: "L1 · fastest memory", L2: "L2 · host memory", L3: "L3 · SSD" };
    const seen = new Map([...$("tiers").children].map((node) => [node.dataset.tier, node]));
    $("tiers").replaceChildren(...stats.tiers.map((tier) => {
      let box = seen.get(tier.tier);
      if (!box) {
        box = make("div", { class: "tier", "data-tier": tier.tier });
        const top = make("div", { class: "top" });
        top.append(make("h3", {}, names[tier.tier] || tier.tier), make("span", {}));
        const bar = make("div", { class: "bar", role: "img" });
        bar.append(make("div", { class: "pinned" }), make("div", { class: "used" }));
        box.append(top, bar, make("p", { class: "quiet" }));
      }
      const share = (n) => (tier.capacity_bytes > 0 ? Math.min(100, (100 * n) / tier.capacity_bytes) : 0);
      const text = `${bytes(tier.used_bytes)} of ${bytes(tier.capacity_bytes)} (${percent(tier.used_bytes, tier.capacity_bytes)})`;
      box.querySelector(".top span").textContent = text;
      const bar = box.querySelector(".bar");
      bar.setAttribute("aria-label", `${tier.tier}: ${text} in use, ${bytes(tier.pinned_bytes)} pinned`);
      bar.children[0].style.width = `${share(tier.pinned_bytes)}%`;
      bar.children[1].style.width = `${share(tier.used_bytes) - share(tier.pinned_bytes)}%`;
      const facts = [`${count(tier.entries)} entries`, `${count(tier.hits)} hits`,
        `${count(tier.evictions_capacity)} evicted for room`];
      if (tier.tier === "L3") {
        const { l3 } = stats;
        facts.push(l3.writable ? "writable" : "NOT WRITABLE", `${count(l3.queued_writes)} writes queued`,
          `${count(l3.dropped_writes)} dropped`, `${count(l3.io_errors + l3.corruptions)} errors`);
      } else {
        facts.push(`${bytes(tier.pinned_bytes)} pinned`, `${Math.round(100 * tier.fragmentation)}\u202f% fragmented`);
        if (tier.given_back_bytes > 0) facts.push(`${bytes(tier.given_back_bytes)} given back`);
      }
      box.querySelector("p").textContent = facts.join(" · ");
      return box;
    }));
  };

  const showTables = (data) => {
    const { stats } = data;
    const known = stats.models.filter((m) => m.gets + m.saves + m.entries > 0);
    const models = [...known].sort((a, b) => b.gets - a.gets).slice(0, 15);
    table($("models"), "Models by lookups",
      [["Model"], ["Lookups"], ["Hit ratio"], ["Saved"], ["Puts"], ["In memory"]],
      models.map((m) => [m.model, count(m.gets), percent(m.hits, m.gets), seconds(m.saved_us / 1e6),
        count(m.saves), `${count(m.entries)} / ${bytes(m.bytes)}`]));
    const more = known.length - models.length + data.models_left_out;
    $("models-note").textContent = models.length === 0 ? "No model yet."
      : more > 0 ? `And ${count(more)} more.` : "";

    const sessions = [...data.sessions].sort((a, b) => b.pinned_bytes - a.pinned_bytes).slice(0, 25);
    table($("sessions"), "Sessions by pinned bytes",
      [["Name"], ["Role", "text"], ["State", "text"], ["Pid"], ["Leases"], ["Reservations"], ["Pinned"], ["Age"]],
      sessions.map((s) => [s.name || "(no name)", s.writer ? "writer" : "reader", s.state.toLowerCase(),
        s.pid > 0 ? String(s.pid) : "–", count(s.leases), count(s.reservations), bytes(s.pinned_bytes),
        seconds(s.age_ms / 1000)]));
    const others = data.sessions.length - sessions.length + data.sessions_left_out;
    $("sessions-note").textContent = !data.local ? "Not shown over the network."
      : sessions.length === 0 ? "Nobody is connected."
      : others > 0 ? `And ${count(others)} more.` : "";

    table($("latencies"), "Latency by operation",
      [["Operation"], ["Count"], ["Median"], ["99th percentile"], ["Longest"]],
      stats.latencies.map((l) => [l.operation, count(l.count), seconds(l.p50_ns / 1e9),
        seconds(l.p99_ns / 1e9), seconds(l.max_ns / 1e9)]));
    $("latency-note").textContent = stats.latencies.length === 0 ? "No calls yet." : "";

    $("problems").replaceChildren(...[...data.problems].reverse().map((problem) => {
      const item = document.createElement("li");
      const time = new Date(problem.unix_ms);
      item.append(make("span", { class: `tag ${problem.level}` }, problem.level === "warn" ? "Warning" : "Error"),
        make("time", { datetime: time.toISOString(), class: "quiet" }, time.toLocaleString()),
        make("div", {}, problem.message));
      return item;
    }));
    $("problems-note").textContent = !data.local ? "Not shown over the network." : data.problems.length === 0 ? "None since start." : "";
  };

  const setState = (text, kind) => {
    const state = $("state");
    if (state.textContent !== text) state.textContent = text;  // else it would be read out again
    state.className = `pill ${kind}`;
  };

  const show = (data) => {
    const { stats } = data;
    $("about").textContent = `${stats.version} · up ${seconds(stats.uptime_ms / 1000)}`;
    if (stats.draining) setState("Draining", "warn");
    else if (stats.l3.enabled && !stats.l3.writable) setState("SSD not writable", "bad");
    else setState("Serving", "good");
    showSummary(data, showCharts(data));
    showTiers(stats);
    showTables(data);
    $("updated").textContent = `Updated ${new Date(data.unix_ms).toLocaleTimeString()}.`;
    $("notice").hidden = true;
    document.documentElement.dataset.loaded = "true";
  };

  let paused = false;
  let timer = 0;
  const poll = async () => {
    try {
      const answer = await fetch("/stats.json", { cache: "no-store", signal: AbortSignal.timeout(5000) });
      if (!answer.ok) throw new Error(`the daemon answered ${answer.status}`);
      show(await answer.json());
    } catch (error) {
      setState("Not reachable", "bad");
      $("notice").textContent = `No answer from the daemon (${error.message}). The figures below are old; trying again.`;
      $("notice").hidden = false;
    }
    if (!paused && !document.hidden) timer = setTimeout(poll, PERIOD_MS);
  };
  $("pause").addEventListener("click", () => {
    paused = !paused;
    $("pause").textContent = paused ? "Resume" : "Pause";
    clearTimeout(timer);
    if (!paused) poll();
  });
  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    if (!document.hidden && !paused) poll();
  });
  poll();
})();
