// The page: what is to be played is asked of the server, turn by turn; what has been played can be looked at again.
(() => {
  const find = (id) => document.getElementById(id), SESSION = "lmrl";
  let data = null, game = null, views = [], shown = 0, playing = false, busy = false, timer = 0, open = 0;

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
    const left = find("left").value.trim(), right = find("right").value.trim();
    const policies = { play: ["human"], watch: [left], compare: [left, right] }[mode()];
    return {
      task: find("task").value,
      policies,
      seed: find("seed").valueAsNumber,
      advisor: policies.includes("human") ? find("advisor").value.trim() : "",
      env: find("env").value.split(/\s+/).filter(Boolean),
    };
  };
  const fields = () => {  // those that belong to the mode and the task
    for (const field of document.querySelectorAll("[data-for]")) field.hidden = !field.dataset.for.split(" ").includes(mode());
    find("advisor").parentElement.hidden = !order().policies.includes("human");
    const { description, players } = data.tasks[find("task").value];
    find("about").textContent = description;
    find("players").replaceChildren(...[...players, ...(mode() === "compare" ? ["human"] : [])].map((value) => make("option", { value })));
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
    document.body.dataset.turns = last();
    advise();
  };

  const begin = async () => {
    clearTimeout(timer);
    try {
      const found = await ask("new", order());
      playing = mode() !== "play";
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
    } catch (error) { problem(error.message); }
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

  find("order").addEventListener("change", () => { if (data) fields(); });
  find("task").addEventListener("change", () => { for (const id of ["advisor", "left", "right", "env"]) find(id).value = ""; });
  find("order").addEventListener("submit", (event) => { event.preventDefault(); if (data) begin(); });
  find("another").addEventListener("click", () => { if (!data) return; find("seed").valueAsNumber = (find("seed").valueAsNumber || 0) + 1; begin(); });
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

  // The key of the address opens a session of this tab, and is worthless from then on.
  const enter = async () => {
    const key = location.hash.slice(1);
    history.replaceState(null, "", location.pathname);
    try {
      if (key) sessionStorage.setItem(SESSION, (await ask("open", { key })).session);
      data = await ask("offer", {});
    } catch (error) { return problem(error.message); }
    const { task, policies, seed, advisor, env } = data.first;
    const [left, right] = policies;
    find("task").value = task;
    document.querySelector(`[value=${policies.length === 2 ? "compare" : left === "human" ? "play" : "watch"}]`).checked = true;
    Object.assign(find("left"), { value: left === "human" && !right ? "" : left });
    find("right").value = right || "";
    find("seed").value = seed;
    find("advisor").value = advisor;
    find("env").value = env.join(" ");
    fields();
    begin();
  };
  addEventListener("hashchange", () => { if (location.hash) enter(); });
  enter();
})();
