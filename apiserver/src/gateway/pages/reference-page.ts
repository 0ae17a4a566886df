// The API reference on the dashboard's port: Swagger UI with the OpenAPI document.
import { dirname } from 'node:path';
import { fileURLToPath } from 'node:url';
import { type Request, Router } from 'express';
import { readOpenapiDocument } from '../http/openapi-route.ts';

const reference = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Kellet API</title>
<link rel="icon" href="/reference/favicon-32x32.png">
<link rel="stylesheet" href="swagger-ui.css">
</head>
<body>
<div id="reference"></div>
<script src="swagger-ui-bundle.js"></script>
<script src="initialize.js"></script>
</body>
</html>
`;

// `validatorUrl: null` keeps the page from requesting a badge from a public validator.
const initialize = `SwaggerUIBundle({
  url: 'openapi.json',
  dom_id: '#reference',
  deepLinking: true,
  filter: true,
  docExpansion: 'none',
  validatorUrl: null,
  presets: [SwaggerUIBundle.presets.apis],
});
`;

/** Policy of the reference: its own files, and requests to the documented API. */
export function referencePolicy(api: string): string {
  return [
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    // Swagger UI embeds icons in its style sheet.
    "img-src 'self' data:",
    `connect-src 'self' ${new URL(api).origin}`,
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
  ].join('; ');
}

/** The files used from swagger-ui-dist. */
const assets = ['swagger-ui-bundle.js', 'swagger-ui.css', 'favicon-32x32.png'] as const;

/** Serves the reference below /reference/. `apiOf` returns the URL of the API for a request. */
export function referenceRoutes(apiOf: (request: Request) => string): Router {
  const folder = dirname(fileURLToPath(import.meta.resolve('swagger-ui-dist/package.json')));
  const document = readOpenapiDocument();
  const routes = Router({ strict: true, caseSensitive: true });
  routes.use('/reference', (request, response, next) => {
    response.set('content-security-policy', referencePolicy(apiOf(request)));
    next();
  });
  routes.get('/reference', (_request, response) => response.redirect(308, '/reference/'));
  routes.get('/reference/', (_request, response) => void response.send(reference));
  routes.get('/reference/initialize.js', (_request, response) => void response.type('js').send(initialize));
  routes.get('/reference/openapi.json', (request, response) => {
    response.json({ ...document, servers: [{ url: apiOf(request) }] });
  });
  for (const asset of assets) {
    routes.get(`/reference/${asset}`, (_request, response) =>
      response.sendFile(asset, { root: folder, cacheControl: false }),
    );
  }
  return routes;
}
