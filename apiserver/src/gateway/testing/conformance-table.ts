// The conformance table: outcomes of HTTP requests at the gateway, with the rule for each. It covers requests on which
// gateways of this kind differ or fail. docs/transcoding.md is generated from this table; conformance.test.ts runs it.
import { bodyGroups } from './body-vectors.ts';
import type { Group } from './conformance.ts';
import { pathGroups } from './path-vectors.ts';
import { queryGroups } from './query-vectors.ts';
import { responseGroups } from './response-vectors.ts';

/** All vectors, by subject. */
export const conformanceTable: readonly Group[] = [...pathGroups, ...queryGroups, ...bodyGroups, ...responseGroups];
