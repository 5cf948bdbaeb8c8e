// The schema is well designed, as graphql-js and graphql-eslint judge it, and breaks no client of the last release.
//
// released.graphql is the schema of the last release, or of the first one to come. A release copies schema.graphql over it,
// and nothing else does: `cp schema.graphql tests/clients/released.graphql`.

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { test } from 'node:test';
import { breaks, lint } from './schema-lint.mjs';

const read = (path) => readFile(new URL(path, import.meta.url), 'utf8');
const [schema, released] = [await read('../../schema.graphql'), await read('released.graphql')];

/** The schema with one text in it replaced: one that is there. */
function changed(before, after) {
  const result = schema.replace(before, after);
  assert.notEqual(result, schema, `the schema has no ${before}`);
  return result;
}

test('the schema is well designed', async () => {
  assert.deepEqual(await lint(schema), []);
});

const BAD_DESIGNS = {
  'an interface that is not kept': [changed('\tmessage: String!\n}', '\tmessage: String\n}'), 'graphql-js'],
  'a floating amount': [changed('\tamount: BigInt!', '\tamount: Float!'), 'no-restricted-syntax: No Float'],
  'a 32-bit amount': [changed('\tamount: BigInt!', '\tamount: Int!'), 'no-restricted-syntax: Amounts'],
  'a mutation that cannot be null': [
    changed(': ClaimDailyBonusPayload @', ': ClaimDailyBonusPayload! @'),
    'no-restricted-syntax: Mutations are nullable',
  ],
  'a scalar that nobody specifies': [
    changed(' @specifiedBy(url: "/docs/scalars#bigint")', ''),
    'no-restricted-syntax: A scalar',
  ],
  'a refusal of its own kind': [
    changed('type PlainError ', 'type OtherError { "x" id: ID! }\n"x" type PlainError '),
    'no-restricted-syntax: Every refusal',
  ],
  'a payload without a way back': [
    changed('\tquery: Query!', '\tother: String'),
    '@graphql-eslint/require-field-of-type-query-in-mutation-result',
  ],
  'a field without a description': [
    changed(/\t"""\n\tThe name to send value to\.\n\t"""\n/, ''),
    '@graphql-eslint/require-description',
  ],
  'an argument without a description': [
    changed(/\t\t"""\n\t\tWhat to move\.\n\t\t"""\n/, ''),
    '@graphql-eslint/require-description',
  ],
  'a name in another style': [changed('\tmemberId: String!', '\tmember_id: String!'), '@graphql-eslint/naming-convention'],
  'a thing without an identity': [
    changed(/type MemberProfile implements Node \{\n\t"""[^"]*"""\n\tid: ID!/, 'type MemberProfile {'),
    '@graphql-eslint/strict-id-in-types',
  ],
  'a page that cannot be turned': [
    changed('\tpageInfo: PageInfo!', '\tinfo: PageInfo!'),
    '@graphql-eslint/relay-connection-types',
  ],
  'a type that nothing leads to': [
    changed('type MemberProfile ', 'type Orphan { "x" id: ID! }\n"x" type MemberProfile '),
    '@graphql-eslint/no-unreachable-types',
  ],
};

for (const [design, [sdl, complaint]] of Object.entries(BAD_DESIGNS)) {
  test(`${design} is found`, async () => {
    const found = await lint(sdl);
    assert.ok(found.some((one) => one.startsWith(complaint)), `${complaint} is not among ${JSON.stringify(found)}`);
  });
}

test('no client of the last release breaks', async () => {
  assert.deepEqual(await breaks(released, schema), []);
});

const BREAKING_CHANGES = {
  'a field that is gone': changed(/\t"""\n\tGrows with[^"]*"""\n\tversion: BigInt!\n/, ''),
  'a field that may be null now': changed('\tversion: BigInt!', '\tversion: BigInt'),
  'an argument that is required now': changed(/(input TransferInput [^]*?\tmemo: String)\n/, '$1!\n'),
  'a code that is gone': changed('\tSELF_TRANSFER\n', '\tTO_ONESELF\n'),
  'a mutation under another name': changed('\tclaimSignupBonus: ', '\tclaimWelcomeBonus: '),
};

for (const [change, sdl] of Object.entries(BREAKING_CHANGES)) {
  test(`${change} is found`, async () => {
    assert.equal((await breaks(schema, sdl)).length, 1);
  });
}

test('what is added breaks nobody', async () => {
  const more = changed('\tversion: BigInt!', '\tversion: BigInt!\n\t"x"\n\tcolour: String');
  assert.deepEqual(await breaks(schema, more), []);
});
