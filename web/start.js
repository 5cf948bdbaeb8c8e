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

const text = (value) => value && JSON.stringify(value, null, 2);

async function start() {
  const answer = await fetch('/graphiql/config.json');
  if (!answer.ok) throw new Error(await answer.text());
  const { demo, members, tabs } = await answer.json();
  if (demo) showMembers(members);
  ReactDOM.createRoot(root).render(
    React.createElement(GraphiQL, {
      fetcher: GraphiQL.createFetcher({ url: '/graphql' }),
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
