"use strict";
// The page knows ids and numbers only. The template is the one home of texts; this script never makes markup.
(() => {
  const find = (id) => document.getElementById(id);
  const study = find("study").dataset.study;
  const place = "lmrl-study-" + study;
  const rater = find("rater");
  const articles = [...document.querySelectorAll("article")];
  const radios = [...document.querySelectorAll("input[type=radio]")];
  let asked = false;

  const say = (words) => { find("said").textContent = words; };
  const ratings = () => Object.fromEntries(radios.filter((r) => r.checked).map((r) => [r.name, Number(r.value)]));
  const unrated = () => articles.filter((article) => !article.querySelector(":checked"));

  const keep = () => {
    try {
      localStorage.setItem(place, JSON.stringify({ rater: rater.value, ratings: ratings() }));
    } catch {
      say("This browser keeps nothing: save your ratings before you close the page.");
    }
  };

  const kept = () => {
    try {
      return JSON.parse(localStorage.getItem(place)) || {};
    } catch {
      return {};
    }
  };

  const show = () => {
    const done = articles.length - unrated().length;
    find("progress").value = done;
    find("count").textContent = done + " of " + articles.length + " rated";
  };

  const restore = () => {
    const { rater: name, ratings: given } = kept();
    if (typeof name === "string") rater.value = name;
    for (const radio of radios) radio.checked = Boolean(given) && given[radio.name] === Number(radio.value);
    show();
  };

  const download = () => {
    const name = rater.value.trim();
    const record = { study, rater: name, ratings: ratings() };
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([JSON.stringify(record, null, 2) + "\n"], { type: "application/json" }));
    link.download = "ratings-" + (name.match(/[\p{L}\p{N}]+/gu) || ["rater"]).join("_") + "-" + study.slice(0, 6) + ".json";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  };

  const save = () => {
    const open = unrated();
    if (!rater.value.trim()) {
      say("Please enter your name or initials first.");
      rater.focus();
    } else if (open.length === articles.length) {
      say("Nothing is rated yet.");
    } else if (open.length && !asked) {
      asked = true;
      say("Not rated yet: dialogue " + open.map((article) => article.id.split("-")[1]).join(", ") +
        ". Save again to leave them out.");
      open[0].querySelector("input").focus();
    } else {
      download();
      say("Saved to your downloads. Please give that file to whoever asked you.");
    }
  };

  const clear = () => {
    if (!confirm("Forget your name and all ratings on this page?")) return;
    for (const radio of radios) radio.checked = false;
    rater.value = "";
    try { localStorage.removeItem(place); } catch { /* nothing was kept */ }
    asked = false;
    say("");
    show();
    rater.focus();
  };

  const changed = () => {
    asked = false;
    say("");
    show();
    keep();
  };

  const choose = (event) => {
    const scale = event.target.closest("fieldset");
    if (!scale || event.ctrlKey || event.altKey || event.metaKey || !/^[1-5]$/.test(event.key)) return;
    const radio = scale.querySelector("input[value='" + event.key + "']");
    radio.checked = true;
    radio.focus();
    changed();
  };

  restore();
  find("study").addEventListener("change", changed);
  find("study").addEventListener("keydown", choose);
  rater.addEventListener("input", changed);
  find("save").addEventListener("click", save);
  find("clear").addEventListener("click", clear);
})();
