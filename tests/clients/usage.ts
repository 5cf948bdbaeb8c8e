// Compiled and never run: what a strict client relies upon in the generated types. A line that expects an error is one that
// compiles without it where a type has become loose.

import type { DocumentTypeDecoration } from '@graphql-typed-document-node/core';
import type { ClaimDailyBonusMutation, TransferMutation, TransferMutationVariables } from './gql/graphql';
import { HomeDocument, TransferDocument } from './gql/graphql';

type Claim = NonNullable<ClaimDailyBonusMutation['claimDailyBonus']>;
type Refusal = Claim['userErrors'][number];
type ResultOf<Document> = Document extends DocumentTypeDecoration<infer Result, infer _> ? Result : never;

/** Narrows by `__typename`: each branch sees the details of its own kind. */
export function describe(refusal: Refusal): string {
  switch (refusal.__typename) {
    case 'AlreadyClaimedError': {
      const again: string | null = refusal.nextClaimAt;
      return `${refusal.claim.id} ${again}`;
    }
    case 'InsufficientFundsError': {
      const amount: string = refusal.available.amount;
      return amount;
    }
    case 'PlainError':
      // @ts-expect-error Only the kind that says when has it.
      return refusal.nextClaimAt;
  }
}

export function broad(refusal: Refusal): string {
  // @ts-expect-error Which kind it is has not been asked.
  void refusal.claim;
  // @ts-expect-error There is no such code.
  if (refusal.code === 'NO_SUCH_CODE') return '';
  return `${refusal.code} ${refusal.message} ${refusal.field?.join('.') ?? ''}`;
}

export function nullability(answer: TransferMutation): string {
  // @ts-expect-error A mutation that failed is null.
  void answer.transfer.replayed;
  // @ts-expect-error Refused, there is no entry.
  void answer.transfer?.entry.id;
  const replayed: boolean | undefined = answer.transfer?.replayed;
  return `${replayed}`;
}

export const wish: TransferMutationVariables = {
  input: { to: 'bob', amount: '30', currency: 'PTS', idempotencyKey: 'lunch-1' },
};

// @ts-expect-error An amount is a string: a JSON number may have been rounded.
export const rounded: TransferMutationVariables = { input: { ...wish.input, amount: 30 } };

// @ts-expect-error The key is not optional.
export const keyless: TransferMutationVariables = { input: { to: 'bob', amount: '30', currency: 'PTS' } };

export function typed(home: ResultOf<typeof HomeDocument>, transfer: ResultOf<typeof TransferDocument>): string {
  // @ts-expect-error Nobody may be signed in.
  void home.viewer.memberId;
  // @ts-expect-error A document's result is no other document's.
  const other: ResultOf<typeof HomeDocument> = transfer;
  const amount: string | undefined = home.viewer?.wallet?.available.amount;
  return `${amount} ${other}`;
}

/** What is `any` would take part in everything: no generated type may. */
type IsAny<T> = 0 extends 1 & T ? true : false;
export const scalars: IsAny<Claim['claim'] | Refusal['message'] | TransferMutationVariables['input']['amount']> = false;
