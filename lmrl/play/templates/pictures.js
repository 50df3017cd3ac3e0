"use strict";
// Pictures of episodes and what was said in them. Texts become text nodes and attributes of fixed names, never markup.
const make = (tag, attributes, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  element.append(...children);
  return element;
};
const draw = (tag, attributes, ...children) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  element.append(...children);
  return element;
};

const number = (value) => value === null ? "–" : (Number.isInteger(value) ? String(value) : value.toFixed(2)).replace("-", "−");

// How games are drawn, by kind of picture; their scripts, which come next, fill it in. An entry has
//   draw(facts, states, said, turn): an element, or null. `facts` are of the environment, `states` of the state before
//     each action and at the end (null: not known), `said` are all texts, `turn` is how many actions have been played;
//   whole: true if one drawing shows the whole episode, so that there is nothing to step through;
//   typing(drawn, said, typed): what stands in place of the drawing while a person types, if that is anything else.
const PICTURES = new Map();

// Where an episode stands after `turn` turns, or null if its task is not drawn.
const picture = (facts, states, said, turn) => {
  const kind = PICTURES.get(facts.kind);
  return kind ? kind.draw(facts, states, said, turn) : null;
};

// All that was said. The player's own lines have a note beside them; `words` may show them otherwise, and `choose` is
// called with the turn that a click on one leads to.
const dialogue = (said, note, choose, words) => {
  const list = make("ol");
  said.forEach((text, place) => {
    const turn = place >> 1, own = place % 2;
    const shown = make("span", { class: "text" });
    if (own && words) shown.append(...words(turn));
    else shown.append(text.replace(/\n$/, "") || make("span", { class: "soft" }, own ? "(an empty line)" : "(no text)"));
    const row = make("li", own ? { class: choose ? "own leads" : "own", "data-turn": turn + 1 } : {}, make("span", { class: "turn" }, own ? String(turn + 1) : ""), shown);
    if (own) row.append(make("span", { class: "reward" }, note(turn)));
    if (own && choose) row.addEventListener("click", () => choose(turn + 1));
    list.append(row);
  });
  return list;
};
