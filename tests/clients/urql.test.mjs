// urql as docs/clients.md sets it up, against a running server.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Client, makeErrorResult } from '@urql/core';
import { filter, map, pipe } from 'wonka';
import { documented } from './documented.mjs';
import { flows, operations } from './flows.mjs';

const { askAgainExchange, makeClient } = await documented('urql.mjs');

const told = ({ data, error }) => {
  if (error?.networkError) throw error.networkError;
  return { data, errors: error?.graphQLErrors ?? [] };
};

flows('urql', (options) => {
  const client = makeClient(options);
  return {
    mutate: async (document, variables, askAgain) => told(await client.mutation(document, variables, { askAgain })),
    query: async (document) => told(await client.query(document, {}, { requestPolicy: 'network-only' })),
  };
});

test('what nobody waits for any more is not asked again', (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  let asked = 0;
  const lost = () => (operations$) =>
    pipe(
      operations$,
      filter(({ kind }) => kind === 'query'),
      map((operation) => {
        asked += 1;
        return makeErrorResult(operation, new TypeError('The connection was lost.'));
      }),
    );
  const client = new Client({ url: 'http://nowhere/', exchanges: [askAgainExchange(), lost] });
  const waiting = client.query(operations.Home, {}).subscribe(() => {});
  t.mock.timers.tick(1000);
  assert.equal(asked, 2, 'as long as somebody waits');
  waiting.unsubscribe();
  t.mock.timers.tick(60_000);
  assert.equal(asked, 2);
});
