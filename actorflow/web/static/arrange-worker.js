// Arranges large graphs beside the page, which goes on drawing meanwhile. Answers come in the order of the questions.

import { Arranger } from "./arrange.js";

let arranger = null;

addEventListener("message", ({ data: { graph, open, window } }) => {
  if (graph) arranger = new Arranger(graph);
  const picture = arranger.arrange(open, window);
  postMessage(picture, Object.values(picture).map((column) => column.buffer));
});
