// The conformance table: what the gateway makes of HTTP requests, each with the rule that says so. The requests are those on
// which gateways of this kind differ or fail; docs/transcoding.md is this table as a page, conformance.test.ts runs it.
import { answerGroups } from './answer-vectors.ts';
import { bodyGroups } from './body-vectors.ts';
import type { Group } from './conformance.ts';
import { pathGroups } from './path-vectors.ts';
import { queryGroups } from './query-vectors.ts';

/** Every vector, by subject. */
export const conformanceTable: readonly Group[] = [...pathGroups, ...queryGroups, ...bodyGroups, ...answerGroups];
