// urql as docs/clients.md sets it up, against a running server.

import { documented } from './documented.mjs';
import { flows } from './flows.mjs';

const { makeClient } = await documented('urql.mjs');

const told = ({ data, error }) => {
  if (error?.networkError) throw error.networkError;
  return { data, errors: error?.graphQLErrors ?? [] };
};

flows('urql', (options) => {
  const client = makeClient(options);
  return {
    mutate: async (document, variables, askAgain) => told(await client.mutation(document, variables, { askAgain })),
    query: async (document, variables) =>
      told(await client.query(document, variables, { requestPolicy: 'network-only' })),
  };
});
