// How a run's learners fared against their earlier selves.

function leagueTable(run) {
  const columns = ["player", "rating", "95% interval", "points", "games"];
  const rows = run.league.map((row) => [
    row.player,
    Math.round(row.rating),
    `${Math.round(row.low)} to ${Math.round(row.high)}`,
    `${(100 * row.score).toFixed(1)} %`,
    row.games,
  ]);
  return html("div", {}, html("h3", {}, run.name), table(columns, rows, `League of ${run.name}`));
}

function leagueChapter() {
  const runs = DATA.runs.filter((run) => run.league.length);
  if (!runs.length) return null;
  return chapter(
    "league",
    "League",
    "The policy at each step that joined a pool, rated on Elo's scale by all games against earlier selves. " +
      "Games count for the snapshot that the learner was about to become; the mean rating is 1500.",
    runs.map(leagueTable),
  );
}
