// One seat: what is known of its episode, a picture, what was said, and for a person a place to answer.
const outcome = ({ over, ending }) =>
  over ? make("span", { class: ending === 0 ? "good" : "bad" }, ["solved", "not solved", "cut short"][ending]) : "";

const facts = (seat, turn) => {
  const sum = seat.rewards.slice(0, turn).reduce((total, reward) => total + reward, 0), value = seat.values[turn];
  const pairs = [["return", number(sum)], ["last reward", turn ? number(seat.rewards[turn - 1]) : ""], ["turn", turn], ["illegal", seat.illegal], ["V", typeof value === "number" ? value.toFixed(2).replace("-", "−") : ""]];
  const told = pairs.filter(([, shown]) => shown !== "").map(([name, shown]) => make("span", {}, name + " ", make("b", {}, String(shown))));
  return [make("b", { class: "player" }, seat.person ? "you" : seat.name), ...told, ...(turn === seat.turns ? [outcome(seat)] : [])];
};

// A place to answer: buttons where the actions can be listed, and a line to type. `say` sends; `typing` hears each key.
const answering = (actions, say, typing) => {
  const field = make("input", { "aria-label": "your action", placeholder: "your action", autocomplete: "off", autocapitalize: "none", spellcheck: "false" });
  const line = make("form", { class: "answer" }, field, make("button", { class: "main" }, "Send"));
  line.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (await say(field.value)) { field.value = ""; typing(""); }
  });
  field.addEventListener("input", () => typing(field.value));
  const ways = make("div", { class: "ways" }, ...actions.map((action) => {
    const way = make("button", { type: "button" }, action);
    way.addEventListener("click", () => say(action));
    return way;
  }));
  return { field, element: make("div", { class: "answering" }, ...(actions.length ? [ways] : []), line) };
};

const seatView = (game, place, say, go) => {
  const first = game.seats[place], { typing } = PICTURES.get(first.picture.kind) || {};
  const told = make("p", { class: "facts", role: "status" }), frame = make("div", { class: "picture" });
  const note = make("p", { class: "note", role: "status" }), solution = make("p", { class: "solution", role: "status" });
  const hint = make("p", { class: "hint", role: "status", hidden: "" }), said = make("div", { class: "said", role: "region", tabindex: 0, "aria-label": "what was said" });
  let seat = first, turn = 0, from = "";

  const paint = (typed) => {
    const words = seat.said.slice(0, 2 * turn + 1), drawn = picture(seat.picture, seat.states, words, turn);
    frame.replaceChildren(...(!drawn ? [] : typing ? typing(drawn, words, typed) : [drawn]));
  };
  const target = (square) => seat.moves[from + square] || seat.moves[`${from}${square}q`];
  const mark = () => frame.querySelectorAll("[data-square]").forEach((field) => {
    field.classList.toggle("from", field.dataset.square === from);
    field.classList.toggle("to", from !== "" && Boolean(target(field.dataset.square)));
  });
  frame.addEventListener("click", ({ target: { dataset: { square } } }) => {
    if (!square || turn !== seat.turns) return;
    const move = from && target(square);
    from = !move && Object.keys(seat.moves).some((squares) => squares.startsWith(square)) ? square : "";
    mark();
    if (move) say(move);
  });

  const answer = first.person ? answering(game.actions, say, (typed) => { if (typing && turn === seat.turns) paint(typed); }) : null;
  // Over the words of a policy with values: Q − V of each token, where 0 is as good as was expected.
  const measure = MEASURES[0], tokens = (words, scale) => words.map((token) => tokenShown(token[0], token, MEASURES, measure, scale));
  const own = make("div", {}, frame, note, solution, hint, ...(answer ? [answer.element] : []));
  const element = make("section", { class: "seat", "aria-label": first.person ? "you" : game.seats.length > 1 ? `${first.name}, ${place + 1} of ${game.seats.length}` : first.name }, told,
    make("div", { class: PICTURES.has(first.picture.kind) ? "both pictured" : "both" }, own, said));

  const show = (now, wanted) => {
    [seat, turn, from] = [now, Math.min(wanted, now.turns), ""];
    told.replaceChildren(...facts(seat, turn));
    paint(answer ? answer.field.value : "");
    note.textContent = seat.notes[turn];
    solution.textContent = turn === seat.turns ? seat.solution : "";
    const reward = (t) => number(seat.rewards[t]), known = seat.words.filter(Boolean), scale = scaleOf(known.flat(), measure);
    const over = (t) => seat.words[t] ? tokens(seat.words[t], scale) : [seat.shown[2 * t + 1].replace(/\n$/, "")];
    const list = dialogue(seat.shown.slice(0, 2 * turn + 1), reward, go, known.length ? over : null);
    if (game.dialogue) list.classList.add("chat");
    said.replaceChildren(...(known.length ? [make("p", { class: "soft words" }, "over the words: advantage Q − V; V, Q and probability when pointed at")] : []), list);
    said.scrollTop = said.scrollHeight;
    hint.hidden = true;
    if (answer) answer.element.hidden = seat.over;
  };
  const advise = ({ name, move, value, words }) => {
    const use = make("button", { type: "button" }, "Use it");
    use.addEventListener("click", () => { answer.field.value = move; answer.field.focus(); answer.field.dispatchEvent(new Event("input")); });
    hint.replaceChildren(make("b", {}, name), " would say: ", make("b", {}, move || "(an empty line)"), 
      value === null ? "" : make("span", { class: "value" }, "V ", make("b", {}, value.toFixed(2).replace("-", "−"))), use,
      ...(words ? [make("div", { class: "words" }, ...tokens(words, scaleOf(words, measure)))] : []));
    hint.hidden = false;
  };
  return { element, show, advise, field: answer && answer.field };
};
