/* global React, ReactDOM, GraphiQL */

const root = document.getElementById('graphiql');

// Nothing outlives the page. A token that the browser had kept would be refused once the demo has a new secret, and an
// idempotency key that it had kept would replay an old transfer.
function memory() {
  const items = new Map();
  return {
    getItem: (key) => items.get(key) ?? null,
    setItem: (key, value) => items.set(key, value),
    removeItem: (key) => items.delete(key),
    clear: () => items.clear(),
    get length() {
      return items.size;
    },
  };
}

function copyButton({ member, token }) {
  const button = document.createElement('button');
  const label = `Copy ${member}’s token`;
  button.textContent = label;
  button.addEventListener('click', async () => {
    const copied = await navigator.clipboard.writeText(token).then(
      () => true,
      () => false,
    );
    button.textContent = copied ? 'Copied' : 'The browser forbids copying';
    setTimeout(() => (button.textContent = label), 1500);
  });
  return button;
}

function showMembers(members) {
  document.getElementById('acting').textContent = members[0].member;
  document.getElementById('members').replaceChildren(...members.map(copyButton));
  document.getElementById('demo').hidden = false;
}

/** Whether the operation that the editor chose is a subscription. */
function isSubscription({ operationName }, { documentAST } = {}) {
  const operations = (documentAST?.definitions ?? []).filter(({ kind }) => kind === 'OperationDefinition');
  const chosen = operations.find(({ name }) => name?.value === operationName) ?? operations[0];
  return chosen?.operation === 'subscription';
}

/** A live operation over graphql-transport-ws on a socket of its own, acting as the tab's headers say. */
function live(payload, { headers } = {}) {
  const address = new URL('/graphql', location.href);
  address.protocol = address.protocol.replace('http', 'ws');
  const socket = new WebSocket(address, 'graphql-transport-ws');
  const [results, waiting] = [[], []];
  let ended = false;
  const settle = () => {
    while (waiting.length > 0 && (results.length > 0 || ended)) {
      waiting.shift()(results.length > 0 ? { value: results.shift(), done: false } : { value: undefined, done: true });
    }
  };
  const show = (result) => {
    results.push(result);
    settle();
  };
  const end = () => {
    ended = true;
    settle();
  };
  const send = (message) => socket.send(JSON.stringify(message));
  socket.addEventListener('open', () => send({ type: 'connection_init', payload: headers ?? {} }));
  socket.addEventListener('message', ({ data }) => {
    const message = JSON.parse(data);
    if (message.type === 'connection_ack') send({ type: 'subscribe', id: '1', payload });
    if (message.type === 'next') show(message.payload);
    if (message.type === 'error') show({ errors: message.payload });
    if (message.type === 'error' || message.type === 'complete') socket.close(1000);
  });
  socket.addEventListener('close', ({ code, reason }) => {
    if (!ended && code !== 1000) show({ errors: [{ message: `The connection was closed: ${code} ${reason}` }] });
    end();
  });
  return {
    [Symbol.asyncIterator]() {
      return this;
    },
    next: () =>
      new Promise((resolve) => {
        waiting.push(resolve);
        settle();
      }),
    return: async () => {
      end();
      socket.close(1000);
      return { value: undefined, done: true };
    },
  };
}

const text = (value) => value && JSON.stringify(value, null, 2);

async function start() {
  const answer = await fetch('/graphiql/config.json');
  if (!answer.ok) throw new Error(await answer.text());
  const { demo, members, tabs } = await answer.json();
  if (demo) showMembers(members);
  const overHttp = GraphiQL.createFetcher({ url: '/graphql' });
  ReactDOM.createRoot(root).render(
    React.createElement(GraphiQL, {
      fetcher: (params, options) => (isSubscription(params, options) ? live : overHttp)(params, options),
      defaultTabs: tabs.map(({ query, variables, headers }) => ({
        query,
        variables: text(variables),
        headers: text(headers),
      })),
      // For a tab that is opened with "+", and for the first one: GraphiQL shows a tab's own headers only when somebody
      // switches to it.
      defaultHeaders: text(tabs[0].headers),
      defaultEditorToolsVisibility: demo ? 'headers' : 'variables',
      storage: memory(),
      showPersistHeadersSettings: false,
    }),
  );
}

start().catch((error) => {
  root.textContent = `GraphiQL did not start: ${error.message}`;
});
