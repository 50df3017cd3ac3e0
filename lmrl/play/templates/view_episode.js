// One episode: facts, picture, dialogue, and over the words of the player what a model thinks of them.
const data = JSON.parse(document.getElementById("data").textContent);
const ENDINGS = ["solved", "by the rules", "cut short"];

// Over all episodes, so that colours mean the same everywhere.
const scales = Object.fromEntries(MEASURES.map((one) => [one.name, scaleOf(Object.values(data.values).flat(2), one)]));
const known = MEASURES.filter(({ name }) => scales[name]);
let measure = known[0];

const heated = (token) => tokenShown(data.texts[token[0]], token, known, measure, scales[measure.name]);

const legend = (again) => {
  const [low, high] = scales[measure.name];
  const choice = make("select", { "aria-label": "what colours the words", id: "measure" });
  for (const { name, words } of known) choice.append(make("option", { value: name }, words));
  choice.value = measure.name;
  choice.addEventListener("change", () => { measure = known.find(({ name }) => name === choice.value); again(); });
  const ramp = make("span", { class: "ramp" });
  ramp.style.background = `linear-gradient(90deg, ${[0, 0.25, 0.5, 0.75, 1].map((s) => colour(s, measure.both)).join(", ")})`;
  return make("div", { class: "legend" }, "colours:", choice, number(low), ramp, number(high), ` by ${data.run}`);
};

const facts = (index) => {
  const e = data.episodes, told = make("p", { class: "facts" });
  const pairs = [["episode", index], ["task", e.task[index]], ["return", number(e.return[index])], ["turns", e.turns[index]],
    ["illegal", e.illegal[index]], ["ended", ENDINGS[e.ending[index]]], ["seed", e.seed[index]]];
  for (const [name, value] of pairs) told.append(make("span", {}, name + " ", make("b", {}, String(value))));
  return told;
};

// Shows an episode in `place`; the arrow keys left and right move `step` through its turns.
const showEpisode = (place, index) => {
  const said = data.episodes.said[index].map((id) => data.texts[id]), last = data.episodes.turns[index];
  const task = data.tasks[data.episodes.task[index]], states = data.episodes.states[index], tokens = data.values[index];
  const frame = make("div", { class: "picture" }), pictured = picture(task, states, said, 0) !== null;
  const moves = pictured && !PICTURES.get(task.kind).whole;
  const slider = make("input", { type: "range", min: 0, max: last, "aria-label": "turn" }), where = make("output");
  let list;
  const show = (turn) => {
    const drawn = picture(task, states, said, turn);
    frame.replaceChildren(...(drawn ? [drawn] : []), ...(moves ? [make("div", { class: "stepper" }, slider, where)] : []));
    slider.value = turn;
    where.textContent = `turn ${turn} of ${last}`;
    for (const row of list.querySelectorAll("li.own")) row.classList.toggle("now", moves && Number(row.dataset.turn) === turn);
  };
  slider.addEventListener("input", () => show(Number(slider.value)));
  const again = () => { showEpisode(place, index); document.getElementById("measure").focus(); };
  const reward = (turn) => number(data.episodes.rewards[index][turn]);
  list = dialogue(said, reward, moves ? show : null, tokens && ((turn) => tokens[turn].map(heated)));
  const both = make("div", { class: pictured ? "both pictured" : "both" });
  both.append(...(pictured ? [frame] : []), make("div", {}, ...(tokens ? [legend(again)] : []), list));
  place.replaceChildren(facts(index), both);
  place.scrollTop = 0;
  show(moves ? last : 0);
  return (by) => moves && show(Math.min(last, Math.max(0, Number(slider.value) + by)));
};
