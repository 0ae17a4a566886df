// @kellet/client: the REST API of Kellet for TypeScript, in Node and in browsers.
export { KelletClient, type ClientOptions } from './client.ts';
export { fixedCredential, SessionCredentials, type Credentials, type Tokens } from './credentials.ts';
export { ApiError, type ErrorBody } from './errors.ts';
export type { components, operations, paths } from './generated/api.ts';
export {
  LiveConnection,
  LiveError,
  type LiveEvent,
  type LiveMessage,
  type LivePoint,
  type LiveSubscription,
  type LiveUnsubscription,
} from './live.ts';
export { defaultRetryPolicy, type RetryPolicy } from './retry.ts';
import type { components } from './generated/api.ts';

/** A message of the API by its name in the contract, such as `Schema<'Device'>`. */
export type Schema<Name extends keyof components['schemas']> = components['schemas'][Name];
