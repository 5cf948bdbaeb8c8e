// A way to the server on which answers get lost: the request arrives and is done, and the client hears nothing of it.

import { once } from 'node:events';
import { createServer } from 'node:http';
import { text } from 'node:stream/consumers';

/** The connection closes in place of the answer. */
export const lose = ({ client }) => client.destroy();
/** The connection stays open, and nothing comes. */
export const hold = () => {};
/** Another answer comes. */
export const answerInstead = (body) => ({ send }) => send(200, JSON.stringify(body));
/** Something in between answers. */
export const badGateway = ({ send }) => send(502, '<html>Bad gateway</html>', 'text/html');

/** Starts one. What is pushed to `fates` happens to the next answers, in order; `seen` has all that was asked and answered. */
export async function startProxy(target) {
  const [fates, seen] = [[], []];
  const proxy = createServer(async (request, response) => {
    const fate = fates.shift();
    const body = await text(request);
    const { accept, authorization, 'content-type': type } = request.headers;
    const headers = { accept, authorization, 'content-type': type };
    const answer = await fetch(target, { method: request.method, headers, body });
    const answered = await answer.text();
    seen.push({ asked: JSON.parse(body), answered: JSON.parse(answered) });
    const send = (status, sent, contentType = answer.headers.get('content-type')) =>
      response.writeHead(status, { 'content-type': contentType }).end(sent);
    if (fate) fate({ client: request.socket, send });
    else send(answer.status, answered);
  });
  proxy.listen(0, '127.0.0.1');
  await once(proxy, 'listening');
  const end = () => {
    proxy.closeAllConnections();
    return new Promise((resolve) => proxy.close(resolve));
  };
  return { url: `http://127.0.0.1:${proxy.address().port}/graphql`, fates, seen, end };
}
