// The page: what is to be played is asked of the server, turn by turn; what has been played can be looked at again.
(() => {
  const find = (id) => document.getElementById(id), SESSION = "lmrl", SHARED = "lmrl-shared";
  let data = null, game = null, views = [], shown = 0, playing = false, busy = false, timer = 0, open = 0, ordered = 0, slow = 0;

  const ask = async (path, body) => {
    let answer;
    document.body.classList.toggle("busy", ++open > 0);
    try {
      const headers = { "content-type": "application/json", "x-lmrl-session": sessionStorage.getItem(SESSION) || "" };
      answer = await fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
    } catch {
      throw new Error("no answer: is lmrl web still running?");
    } finally { document.body.classList.toggle("busy", --open > 0); }
    const text = await answer.text();
    if (answer.ok) return JSON.parse(text);
    throw new Error(text.startsWith("{") ? JSON.parse(text).error : text);
  };
  const problem = (words) => { find("problem").textContent = words; if (words) playing = false; };

  const mode = () => document.querySelector("[name=mode]:checked").value;
  const order = () => {
    const left = find("left").value, right = find("right").value;
    const policies = { play: ["human"], watch: [left], compare: [left, right] }[mode()];
    return {
      task: find("task").value,
      policies,
      seed: find("seed").valueAsNumber,
      advisor: policies.includes("human") ? find("advisor").value : "",
      env: find("env").value.split(/\s+/).filter(Boolean),
    };
  };
  const fields = () => {  // those that belong to the mode and the task
    for (const field of document.querySelectorAll("[data-for]")) field.hidden = !field.dataset.for.split(" ").includes(mode());
    find("advisor").parentElement.hidden = !order().policies.includes("human");
    const { description, guide, players } = data.tasks[find("task").value], you = mode() === "compare" ? [["human", "you"]] : [];
    find("about").textContent = description;
    list(find("left"), players, you);
    list(find("right"), players, you);
    list(find("advisor"), players, [["", "nobody"]]);
    explain(guide);
  };
  // Names to choose from under their headings, after others; what was chosen stays chosen, if it is still there.
  const list = (field, groups, others) => {
    const kept = field.value, option = (value, words) => make("option", { value }, words);
    const named = Object.entries(groups).filter(([, names]) => names.length);
    field.replaceChildren(...others.map(([value, words]) => option(value, words)),
      ...named.map(([label, names]) => make("optgroup", { label }, ...names.map((name) => option(name, name)))));
    choose(field, kept);
  };
  const choose = (field, value) => { field.value = value; if (field.selectedIndex < 0) field.selectedIndex = 0; };
  const explain = ({ rules, action, example: [typed, answer] }) => {
    const lines = [["Rules", rules], ["Your action", action], ...(typed ? [["Example", typed], ["Answer", answer]] : [])];
    find("guide").querySelector("dl").replaceChildren(...lines.flatMap(([name, words]) => [make("dt", {}, name), make("dd", {}, words)]));
    find("guide").hidden = false;
  };
  const listMoves = ({ first_moves: moves, dialogue }) => {
    find("listed").hidden = !moves.length;
    find("listed").open = false;
    find("listed").querySelector("summary").textContent = `${dialogue ? "Some of what you can say first" : "What you can type first"} (${moves.length})`;
    find("listed").querySelector("div").textContent = moves.join("\n");
    find("listed").classList.toggle("short", moves.every((move) => move.length < 8));
  };

  const last = () => Math.max(...game.seats.map(({ turns }) => turns));
  const waiting = () => game.seats.some(({ person, over }) => person && !over);
  const goesOn = () => game.seats.some(({ over }) => !over);

  const show = (turn) => {
    shown = Math.min(Math.max(0, turn), last());
    views.forEach((view, place) => view.show(game.seats[place], shown));
    Object.assign(find("turn"), { max: last(), value: shown });
    find("where").textContent = `turn ${shown} of ${last()}`;
    find("back").disabled = shown === 0;
    find("on").disabled = shown === last() && (!goesOn() || waiting());
    if (find("on").disabled) playing = false;
    find("play").textContent = playing ? "Pause" : "Play";
    find("play").disabled = find("on").disabled;
  };
  const advise = async () => {
    if (!game.advised || !waiting()) return;
    const asked = game, place = game.seats.findIndex(({ person }) => person);
    try {
      const advice = await ask("advice", { game: game.game });
      if (asked === game && shown === last() && advice.turn === game.seats[place].turns) views[place].advise(advice);
    } catch (error) { problem(error.message); }
  };
  const arrived = (found) => {
    game = found;
    problem("");
    show(last());
    if (last() === 1) find("guide").open = false;  // before the first move it is open; afterwards as the reader likes
    find("sharing").hidden = !game.link;
    find("link").value = game.link ? `${location.origin}${location.pathname}#${game.link}` : "";
    find("copied").textContent = "";
    document.body.dataset.turns = last();
    advise();
  };

  // Policies may take long to load: no second game is ordered in the meantime, and what takes long is said.
  const starts = [find("start"), find("another")];
  const loading = (words) => {
    for (const button of starts) button.disabled = words !== "";
    clearTimeout(slow);
    if (words) slow = setTimeout(() => { find("loading").textContent = words; }, 300);
    else find("loading").textContent = "";
  };
  const players = ({ task, policies, advisor }) => [...policies, advisor].filter((name) => name && name !== "human").join(", ") || task;
  const begin = async (path = "new", told = order()) => {
    const mine = ++ordered, pressed = document.activeElement;
    clearTimeout(timer);
    problem("");
    loading(`loading ${players(told.order || told)} …`);
    try {
      const found = await ask(path, told);
      if (mine !== ordered) return;  // a link has ordered another one since
      playing = mode() !== "play";
      if (narrow()) find("choose").open = false;
      find("guide").open = mode() === "play" && found.seats[0].turns === 0;
      listMoves(found);
      game = found;
      views = game.seats.map((_, place) => seatView(game, place, say, (turn) => { playing = false; show(turn); }));
      find("seats").className = views.length === 1 ? "alone" : "";
      find("seats").replaceChildren(...views.map(({ element }) => element));
      find("controls").hidden = false;
      for (const control of document.querySelectorAll(".watched")) control.hidden = game.seats.every(({ person }) => person);
      arrived(found);
      const field = views.map((view) => view.field).find(Boolean);
      if (field && matchMedia("(pointer: fine)").matches) field.focus();
      later();
    } catch (error) {
      if (mine === ordered) problem(error.message);
    } finally {
      if (mine === ordered) loading("");
      if (starts.includes(pressed) && document.activeElement === document.body) pressed.focus();  // it was lost when they were disabled
    }
  };
  const step = async (action) => {
    if (busy) return false;
    const { game: number } = game;
    busy = true;
    try {
      const found = await ask("step", { game: number, action });
      if (number === game.game) arrived(found);
      return true;
    } catch (error) {
      problem(error.message);
      show(shown);
      return false;
    } finally { busy = false; }
  };
  const say = (action) => step(action);
  const forward = async () => {
    if (shown < last()) show(shown + 1);
    else if (goesOn() && !waiting()) await step(null);
  };
  const later = () => {
    clearTimeout(timer);
    if (playing) timer = setTimeout(async () => { if (playing) { await forward(); later(); } }, Number(find("pace").value));
  };
  const pause = () => { playing = false; };
  const narrow = () => matchMedia("(max-width: 34rem)").matches;
  // What a link says of a game is data for the server, which checks it like any other order.
  const replay = (link) => {
    const told = new URLSearchParams(link), task = told.get("task") || "", env = told.getAll("env");
    if (!Object.hasOwn(data.tasks, task)) return problem("this link names no task that is known here");
    const seed = Number(told.get("seed"));
    find("task").value = task;
    document.querySelector("[value=play]").checked = true;
    Object.assign(find("seed"), { value: seed });
    find("env").value = env.join(" ");
    find("advisor").value = "";
    fields();
    return begin("replay", { order: { task, policies: ["human"], seed, advisor: "", env }, moves: told.getAll("move") });
  };

  find("order").addEventListener("change", () => { if (data) fields(); });
  find("task").addEventListener("change", () => { find("env").value = ""; find("advisor").value = ""; });
  find("order").addEventListener("submit", (event) => { event.preventDefault(); if (data) begin(); });
  find("another").addEventListener("click", () => { if (!data) return; find("seed").valueAsNumber = (find("seed").valueAsNumber || 0) + 1; begin(); });
  find("copy").addEventListener("click", async () => {
    find("link").select();
    try { await navigator.clipboard.writeText(find("link").value); find("copied").textContent = "copied"; } catch { find("copied").textContent = "press Ctrl-C to copy"; }
  });
  find("play").addEventListener("click", () => { playing = !playing; show(shown); later(); });
  find("back").addEventListener("click", () => { pause(); show(shown - 1); });
  find("on").addEventListener("click", () => { pause(); forward(); });
  find("turn").addEventListener("input", ({ target }) => { pause(); show(Number(target.value)); });
  addEventListener("keydown", (event) => {
    if (!game || event.target.matches("select, textarea, input:not(.answer input)") || event.target.value) return;
    if (event.altKey || event.ctrlKey || event.metaKey || !event.key.startsWith("Arrow")) return;
    const action = waiting() && game.actions.find((words) => words.endsWith(` ${event.key.slice(5).toLowerCase()}`));
    const act = action ? () => say(action) : { ArrowLeft: () => { pause(); show(shown - 1); }, ArrowRight: () => { pause(); forward(); } }[event.key];
    if (act) { event.preventDefault(); act(); }
  });

  // A keyboard on the screen may cover what is fixed to the bottom of the page.
  const view = window.visualViewport, lift = () => {
    const covered = view.scale === 1 ? innerHeight - view.height - view.offsetTop : 0;
    document.documentElement.style.setProperty("--keyboard", `${Math.max(0, covered)}px`);
  };
  if (view) for (const event of ["resize", "scroll"]) view.addEventListener(event, lift);

  // The token of the address opens the page. A shared game waits for it.
  const enter = async () => {
    const words = location.hash.slice(1), shared = words.includes("=");
    history.replaceState(null, "", location.pathname);
    if (shared) sessionStorage.setItem(SHARED, words);
    try {
      if (words && !shared) sessionStorage.setItem(SESSION, (await ask("open", { key: words })).session);
      data = await ask("offer", {});
    } catch (error) { return problem(error.message); }
    const link = sessionStorage.getItem(SHARED);
    sessionStorage.removeItem(SHARED);
    const { task, policies, seed, advisor, env } = data.first;
    const [left, right] = policies;
    find("task").value = task;
    document.querySelector(`[value=${policies.length === 2 ? "compare" : left === "human" ? "play" : "watch"}]`).checked = true;
    fields();
    choose(find("left"), left);
    choose(find("right"), right || "");
    choose(find("advisor"), advisor);
    find("seed").value = seed;
    find("env").value = env.join(" ");
    fields();
    return link ? replay(link) : begin();
  };
  addEventListener("hashchange", () => { if (location.hash) enter(); });
  enter();
})();
