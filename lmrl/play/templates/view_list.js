// The list: filtered, sorted, and only as many rows in the page as can be seen.
(() => {
  const find = (id) => document.getElementById(id);
  const e = data.episodes, total = e.return.length, HEIGHT = 32;
  const columns = { number: [...e.return.keys()], return: e.return, turns: e.turns, illegal: e.illegal, ending: e.ending };
  const scroll = find("scroll"), space = find("space");
  let order = columns.number, by = "number", down = false, selected = -1, step = () => {};

  const holding = (words) => {  // ids of the texts that hold the words: each distinct text is looked at once
    const wanted = words.toLowerCase(), found = new Set();
    data.texts.forEach((text, id) => { if (text.toLowerCase().includes(wanted)) found.add(id); });
    return found;
  };

  const filter = () => {
    const words = find("words").value.trim(), texts = words ? holding(words) : null, ending = find("ending").value;
    const bounds = ["return", "turns", "illegal"].map((name) => {
      const [least, most] = ["least", "most"].map((end) => find(`${name}-${end}`).value);
      return [columns[name], least === "" ? -Infinity : Number(least), most === "" ? Infinity : Number(most)];
    });
    order = columns.number.filter((index) =>
      bounds.every(([values, least, most]) => least <= values[index] && values[index] <= most) &&
      (ending === "" || e.ending[index] === Number(ending)) &&
      (!texts || e.said[index].some((id) => texts.has(id))));
    sort();
  };

  const sort = () => {
    const values = columns[by], sign = down ? -1 : 1;
    order.sort((a, b) => sign * (values[a] - values[b]) || a - b);
    for (const button of find("columns").children) {
      const sorted = button.dataset.by === by;
      button.setAttribute("aria-pressed", sorted);
      button.setAttribute("aria-label", button.textContent + (!sorted ? "" : down ? ", descending" : ", ascending"));
    }
    find("count").textContent = order.length === total ? `${total} episodes` : `${order.length} of ${total} episodes`;
    space.style.height = `${order.length * HEIGHT}px`;
    scroll.scrollTop = 0;
    rows();
  };

  const row = (place) => {
    const index = order[place], outcome = ENDINGS[e.ending[index]];
    const shown = make("div", { class: "row", role: "option", id: `row-${index}`, "aria-selected": index === selected, "data-index": index,
      "aria-posinset": place + 1, "aria-setsize": order.length },  // only some of the rows are in the page
      make("span", { class: "soft" }, String(index)), make("span", {}, number(e.return[index])), make("span", {}, String(e.turns[index])),
      make("span", e.illegal[index] ? { class: "bad" } : {}, String(e.illegal[index])),
      make("span", e.ending[index] === 0 ? { class: "good" } : {}, outcome));
    shown.style.top = `${place * HEIGHT}px`;
    shown.addEventListener("click", () => select(index));
    return shown;
  };

  const rows = () => {
    const first = Math.max(0, Math.floor(scroll.scrollTop / HEIGHT) - 5);
    const last = Math.min(order.length, first + Math.ceil(scroll.clientHeight / HEIGHT) + 10);
    space.replaceChildren(...Array.from({ length: Math.max(0, last - first) }, (_, k) => row(first + k)));
    if (find(`row-${selected}`)) scroll.setAttribute("aria-activedescendant", `row-${selected}`);
    else scroll.removeAttribute("aria-activedescendant");
  };

  const select = (index) => {
    selected = index;
    step = showEpisode(find("detail"), index);
    const top = order.indexOf(index) * HEIGHT;
    if (top < scroll.scrollTop) scroll.scrollTop = top;
    if (top + HEIGHT > scroll.scrollTop + scroll.clientHeight) scroll.scrollTop = top + HEIGHT - scroll.clientHeight;
    rows();
  };

  const move = (steps) => {
    const place = order.indexOf(selected) + steps;
    if (place >= 0 && place < order.length) select(order[place]);
  };

  find("columns").addEventListener("click", ({ target }) => {
    if (!target.dataset.by) return;
    down = target.dataset.by === by ? !down : target.dataset.by !== "number";
    by = target.dataset.by;
    sort();
  });
  find("filters").addEventListener("input", filter);
  find("filters").addEventListener("submit", (event) => event.preventDefault());
  find("filters").addEventListener("reset", () => setTimeout(filter));
  scroll.addEventListener("scroll", rows);
  addEventListener("resize", rows);
  addEventListener("keydown", (event) => {
    if (event.target.matches("input, select, textarea")) return;
    const act = { ArrowDown: () => move(1), ArrowUp: () => move(-1), ArrowRight: () => step(1), ArrowLeft: () => step(-1) }[event.key];
    if (act) { event.preventDefault(); act(); }
  });

  const asked = Number(location.hash.slice(1));
  filter();
  if (total) select(Number.isInteger(asked) && asked >= 0 && asked < total ? asked : 0);
  document.body.dataset.ready = String(Math.round(performance.now()));
})();
