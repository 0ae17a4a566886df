// The dashboard's port: static pages, currently the API reference. Everything is served by this process, which the
// content security policy enforces.
import { dirname } from 'node:path';
import { fileURLToPath } from 'node:url';
import express, { type NextFunction, type Request, type Response } from 'express';
import { HttpServer } from './http-server.ts';
import { readOpenapiDocument } from './openapi-route.ts';

const page = (title: string, head: string, body: string): string => `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${title}</title>
<link rel="icon" href="/reference/favicon-32x32.png">
${head}
</head>
<body>
${body}
</body>
</html>
`;

const home = page('Kellet', '', '<h1>Kellet</h1>\n<p><a href="/reference/">API reference</a></p>');

const reference = page(
  'Kellet API',
  '<link rel="stylesheet" href="swagger-ui.css">',
  '<div id="reference"></div>\n<script src="swagger-ui-bundle.js"></script>\n<script src="initialize.js"></script>',
);

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

/** Policy of every page: its own files, and requests to the documented API. */
export function contentSecurityPolicy(api: string): string {
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

/**
 * Returns the URL of the API for a page requested under `host` (the Host header): `publicUrl` if configured, else the
 * REST port of that host. An invalid Host header counts as localhost.
 */
export function apiUrl(publicUrl: string, host: string | undefined, restPort: number, scheme = 'http'): string {
  if (publicUrl !== '') return publicUrl.replace(/\/$/, '');
  const name = /^([a-z0-9.-]+|\[[0-9a-f:]+\])(:\d+)?$/i.exec(host ?? '')?.[1] ?? 'localhost';
  return `${scheme}://${name}:${restPort}`;
}

/** The files used from swagger-ui-dist. */
const assets = ['swagger-ui-bundle.js', 'swagger-ui.css', 'favicon-32x32.png'] as const;

/** Creates the server of the static pages; the caller starts listening. `restPort` is read for each page. */
export function createPageServer(options: {
  publicUrl: string;
  scheme: 'http' | 'https';
  restPort: () => number;
}): HttpServer {
  const folder = dirname(fileURLToPath(import.meta.resolve('swagger-ui-dist/package.json')));
  const document = readOpenapiDocument();
  const apiOf = ({ headers }: Request): string =>
    apiUrl(options.publicUrl, headers.host, options.restPort(), options.scheme);

  const app = express();
  app.disable('x-powered-by');
  app.enable('strict routing');
  app.enable('case sensitive routing');
  app.use((request, response, next) => {
    response.set({
      'content-security-policy': contentSecurityPolicy(apiOf(request)),
      'x-content-type-options': 'nosniff',
      'referrer-policy': 'no-referrer',
      'cross-origin-opener-policy': 'same-origin',
      // Browsers revalidate their copy.
      'cache-control': 'no-cache',
    });
    next();
  });
  app.get('/', (_request, response) => void response.send(home));
  app.get('/reference', (_request, response) => response.redirect(308, '/reference/'));
  app.get('/reference/', (_request, response) => void response.send(reference));
  app.get('/reference/initialize.js', (_request, response) => void response.type('js').send(initialize));
  app.get('/reference/openapi.json', (request, response) => {
    response.json({ ...document, servers: [{ url: apiOf(request) }] });
  });
  for (const asset of assets) {
    app.get(`/reference/${asset}`, (_request, response) =>
      response.sendFile(asset, { root: folder, cacheControl: false }),
    );
  }
  app.use((_request, response) => void response.status(404).type('txt').send('not found\n'));
  // Express recognises an error handler by its four parameters; its default one would reveal where the error occurred.
  app.use((error: { status?: number }, _request: Request, response: Response, _next: NextFunction) => {
    if (response.headersSent) return void response.destroy();
    response
      .status(error.status ?? 500)
      .type('txt')
      .send('not available\n');
  });
  return new HttpServer(app);
}
