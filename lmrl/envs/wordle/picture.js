// Wordle: a row of tiles for each guess.
{
  const COLOURS = /^[gyb]{5}$/;

  // Guesses and the answers to them.
  const split = (said) => [said.filter((_, place) => place % 2), said.slice(1).filter((_, place) => place % 2)];

  const tiles = (guesses, answers) => {
    const found = make("div", { class: "tiles" });
    guesses.forEach((guess, turn) => {
      const letters = [...guess.replace(/\s/g, "")], colours = answers[turn].replace(/\s/g, "");
      const legal = COLOURS.test(colours) && letters.length === 5;
      for (let place = 0; place < 5; place++) {
        const colour = legal ? colours[place] : "x";
        const words = { g: "here", y: "elsewhere", b: "not in the word", x: "not in the list" }[colour];
        const label = `${letters[place] || "no letter"}: ${words}`;
        found.append(make("span", { class: "tile " + colour, title: words, role: "img", "aria-label": label }, letters[place] || " "));
      }
    });
    return found;
  };

  // The rows that are still empty, the first of them with what is being typed.
  const fillTiles = (drawn, guesses, typed) => {
    const letters = [...typed.replace(/\s/g, "")].slice(0, 5);
    for (let place = guesses.length * 5; place < 30; place++)
      drawn.append(make("span", { class: "tile o" }, (place < guesses.length * 5 + 5 && letters[place % 5]) || " "));
  };

  // The letters by the best that is known of them.
  const alphabet = (guesses, answers) => {
    const known = {};
    guesses.forEach((guess, turn) => {
      const letters = [...guess.replace(/\s/g, "")], colours = answers[turn].replace(/\s/g, "");
      if (!COLOURS.test(colours)) return;
      letters.forEach((letter, place) => {
        if ("byg".indexOf(colours[place]) >= "byg".indexOf(known[letter] || "b")) known[letter] = colours[place];
      });
    });
    return make("div", { class: "alphabet", role: "group", "aria-label": "letters" },
      ...[..."abcdefghijklmnopqrstuvwxyz"].map((letter) => {
        const words = { g: "at its place", y: "elsewhere", b: "not in the word" }[known[letter]] || "not tried";
        return make("span", { class: `tile ${known[letter] || "o"}`, title: words, role: "img", "aria-label": `${letter}: ${words}` }, letter);
      }));
  };

  PICTURES.set("wordle", {
    whole: true,
    draw: (facts, states, said, turn) => tiles(...split(said)),
    typing: (drawn, said, typed) => {
      const [guesses, answers] = split(said);
      fillTiles(drawn, guesses, typed);
      return [drawn, alphabet(guesses, answers)];
    },
  });
}
