// Elements are made here, and text only ever becomes text: a name like "<script>" is shown, never read.

/**
 * @param {string} tag
 * @param {Record<string, string>} attributes
 * @param {...(Node | string)} children
 */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export function byId(id) {
  return document.getElementById(id);
}

/** Set text only where it differs, so that an idle page costs no layout. */
export function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}
