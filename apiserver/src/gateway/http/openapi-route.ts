// GET /api/v1/openapi.json: serves the generated document to anyone with a credential.
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { fileURLToPath } from 'node:url';
import { create } from '@bufbuild/protobuf';
import { Access_Caller, AccessSchema } from '@kellet/proto/es/kellet/v1/options_pb';
import type { Admission } from '../admission/admission-steps.ts';
import { credentialOf } from '../admission/authenticate.ts';
import { type AddressOf, addressOfRequest } from '../admission/client-address.ts';
import { namespaceHeader } from './metadata.ts';
import { isUnchanged, sendResponse, sendUnchanged } from './rest-response.ts';

export const openapiPath = '/api/v1/openapi.json';

/** Counted like every call, and open to every kind of credential. */
const anyCredential = create(AccessSchema, {
  callers: [Access_Caller.USER, Access_Caller.SERVICE, Access_Caller.DEVICE, Access_Caller.PLATFORM],
});

/** Reads the committed document and removes its formatting. */
export const readOpenapiDocument = (): Record<string, unknown> =>
  JSON.parse(readFileSync(fileURLToPath(import.meta.resolve('@kellet/proto/openapi.json')), 'utf8')) as Record<
    string,
    unknown
  >;

/** Serves the document, or 304 if the client's copy is current. Rejects with the errors of admission. */
export type DocumentRoute = (request: IncomingMessage, response: ServerResponse) => Promise<void>;

/** Creates the route. Rejections carry rate limit headers too. */
export function openapiRoute(admission: Admission, addressOf: AddressOf): DocumentRoute {
  // As bytes, of which responses that are not read have no copies.
  const body = Buffer.from(JSON.stringify(readOpenapiDocument()));
  const etag = `"${createHash('sha256').update(body).digest('base64url').slice(0, 22)}"`;
  return async (request, response) => {
    const { headers } = request;
    const limits = new Map<string, string>();
    const credential = credentialOf(headers.authorization, headers['x-api-key'] as string | undefined);
    const namespace = headers[namespaceHeader] as string | undefined;
    try {
      await admission.admit(anyCredential, credential, addressOfRequest(addressOf, request), limits, namespace);
    } finally {
      for (const [name, value] of limits) response.setHeader(name, value);
    }
    response.setHeader('etag', etag);
    response.setHeader('cache-control', 'private, no-cache');
    if (isUnchanged(headers['if-none-match'], etag)) sendUnchanged(response, []);
    else sendResponse(response, 200, [], 'application/json', body);
  };
}
