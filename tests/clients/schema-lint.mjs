// What a schema of Largesse has to keep, as graphql-js, graphql-eslint and graphql-inspector see it.

import { dirname, join } from 'node:path';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import graphqlPlugin from '@graphql-eslint/eslint-plugin';
import { CriticalityLevel, diff } from '@graphql-inspector/core';
import { ESLint } from 'eslint';
import { buildSchema, validateSchema } from 'graphql';

// Anywhere else the plugin keeps the first schema that it reads for the life of the process, and judges all others by it.
process.env.NODE_ENV = 'test';

const P = '@graphql-eslint';
const { configs } = graphqlPlugin;

/** Types whose value is their identity, and the two that are one per member. */
const WITHOUT_ID = ['Money', 'PageInfo', 'DailyBonusStatus', 'DailyBonusStep', 'SignupBonusStatus'];
const SUFFIXES_WITHOUT_ID = ['Payload', 'Error', 'Connection', 'Edge', 'Event'];

const naming = structuredClone(configs['flat/schema-recommended'].rules[`${P}/naming-convention`]);
Object.assign(naming[1], {
  InputObjectTypeDefinition: { style: 'PascalCase', requiredSuffixes: ['Input'] },
  UnionTypeDefinition: { style: 'PascalCase', requiredSuffixes: ['Result', 'Error', 'Event'] },
  EnumTypeDefinition: { style: 'PascalCase', forbiddenPrefixes: ['Enum'], forbiddenSuffixes: ['Enum'] },
  'FieldDefinition[gqlType.name.value=Boolean]': { style: 'camelCase', forbiddenPrefixes: ['not'] },
});

const AMOUNTS = '[name.value=/(amount|balance|price)$/i]';
const MUTATIONS = 'ObjectTypeDefinition[name.value="Mutation"] > FieldDefinition > ';

/** What no rule of the plugin covers, as selectors of the GraphQL syntax tree. */
const HOUSE_RULES = [
  ['NamedType[name.value="Float"]', 'No Float: amounts are BigInt strings in minor units.'],
  [`InputValueDefinition${AMOUNTS} NamedType[name.value="Int"]`, 'Amounts are BigInt, not 32 bit.'],
  [`FieldDefinition${AMOUNTS} > .gqlType NamedType[name.value="Int"]`, 'Amounts are BigInt, not 32 bit.'],
  [`${MUTATIONS}.gqlType[kind="NamedType"]:not([name.value=/Payload$/])`, 'A mutation answers with its own payload.'],
  [`${MUTATIONS}.gqlType[kind="NonNullType"]`, 'Mutations are nullable: one that fails must not hide the others.'],
  ['ObjectTypeDefinition[name.value=/Error$/][interfaces.length=0]', 'Every refusal implements UserError.'],
  ['ScalarTypeDefinition[directives.length=0]', 'A scalar says what it is: @specifiedBy(url:).'],
];

const rules = {
  ...configs['flat/schema-recommended'].rules,
  ...configs['flat/schema-relay'].rules,
  [`${P}/naming-convention`]: naming,
  [`${P}/require-description`]: ['error', {
    types: true, rootField: true, FieldDefinition: true, EnumValueDefinition: true, InputValueDefinition: true,
    DirectiveDefinition: true, ignoredSelectors: ['DirectiveDefinition > InputValueDefinition'],
  }],
  [`${P}/require-deprecation-reason`]: 'error',
  [`${P}/input-name`]: ['error', { checkInputType: true, checkMutations: true, caseSensitiveInputType: false }],
  [`${P}/no-scalar-result-type-on-mutation`]: 'error',
  [`${P}/require-nullable-result-in-root`]: 'error',
  [`${P}/require-nullable-fields-with-oneof`]: 'error',
  [`${P}/require-field-of-type-query-in-mutation-result`]: 'error',
  [`${P}/relay-arguments`]: ['error', { includeBoth: false }],
  [`${P}/relay-edge-types`]: ['error', {
    withEdgeSuffix: true, shouldImplementNode: true, listTypeCanWrapOnlyEdgeType: false,
  }],
  [`${P}/strict-id-in-types`]: ['error', {
    acceptedIdNames: ['id'], acceptedIdTypes: ['ID'],
    exceptions: { types: WITHOUT_ID, suffixes: SUFFIXES_WITHOUT_ID },
  }],
  [`${P}/unique-enum-value-names`]: 'error',
  'no-restricted-syntax': ['error', ...HOUSE_RULES.map(([selector, message]) => ({ selector, message }))],
};

/** What graphql-js and graphql-eslint find wrong with a schema: `rule: message` each. */
export async function lint(sdl) {
  const invalid = validateSchema(buildSchema(sdl, { assumeValidSDL: true })).map(({ message }) => `graphql-js: ${message}`);
  if (invalid.length) return invalid;
  const folder = await mkdtemp(join(tmpdir(), 'largesse-lint-'));
  try {
    const file = join(folder, 'schema.graphql');
    await writeFile(file, sdl);
    const config = {
      files: ['**/*.graphql'],
      languageOptions: { parser: graphqlPlugin.parser, parserOptions: { graphQLConfig: { schema: file } } },
      plugins: { [P]: graphqlPlugin },
      rules,
    };
    const eslint = new ESLint({ cwd: dirname(file), overrideConfigFile: true, overrideConfig: config });
    const [{ messages }] = await eslint.lintFiles([file]);
    return messages.map(({ ruleId, message }) => `${ruleId}: ${message}`);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

/** What in the newer schema breaks a client of the older one. */
export async function breaks(older, newer) {
  const changes = await diff(buildSchema(older), buildSchema(newer));
  return changes.filter(({ criticality }) => criticality.level === CriticalityLevel.Breaking).map(({ message }) => message);
}
