// The token that the page was opened with: known to this tab and this address alone, and shown with each request.

const KEY = `actorflow token of ${new URL(".", document.baseURI).pathname}`;

/** Taken out of the address, so that it stays out of what people copy. Storage may be forbidden, in a frame say. */
function take() {
  const address = new URL(location.href), given = address.searchParams.get("token");
  try {
    if (given === null) return sessionStorage.getItem(KEY);
    sessionStorage.setItem(KEY, given);
  } catch {
    // known until the page is left
  }
  address.searchParams.delete("token");
  history.replaceState(history.state, "", address);
  return given;
}

/** The token; null if there is none. */
export const token = take();

/** An address of another page of this server, which is to know the token, too. */
export function withToken(path) {
  return token === null ? path : `${path}?token=${encodeURIComponent(token)}`;
}

/** Headers that show it; a header's text is bytes. */
export function shown() {
  return token === null ? {} : { Authorization: `Bearer ${String.fromCharCode(...new TextEncoder().encode(token))}` };
}
