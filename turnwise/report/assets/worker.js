// One stream for all open pages of a browser, which allows only six connections to a server. A page that opens gets all
// that is known, and then every change.

const known = nothingKnown();
const pages = new Set();
let connection = "lost";
let offset = 0; // the server's clock, seen from here

function tellAll(message) {
  for (const page of pages) page.postMessage(message);
}

onconnect = ({ ports: [page] }) => {
  pages.add(page);
  page.onmessage = () => pages.delete(page); // the only thing that a page says is that it goes
  page.postMessage({ kind: "known", known, connection, offset });
};

followStream((message) => {
  if (message.kind === "connection") connection = message.connection;
  else {
    applyParts(known, message.parts);
    offset = message.now - Date.now() / 1000;
  }
  tellAll(message);
});
