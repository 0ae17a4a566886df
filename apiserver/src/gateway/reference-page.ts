// The dashboard's port: static pages, today the API reference. Everything comes from this process, nothing from another
// host, and the content security policy holds browsers to that.
import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { HttpServer } from './http-server.ts';
import { readOpenapiDocument } from './openapi-route.ts';
import { answer } from './rest-answer.ts';

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

// `validatorUrl: null`: without it the page would ask a public validator for a badge.
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

/** The policy of every page: own files, and requests to the API that the page documents. */
export function contentSecurityPolicy(api: string): string {
  return [
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    // Swagger UI's icons are data in its style sheet.
    "img-src 'self' data:",
    `connect-src 'self' ${new URL(api).origin}`,
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
  ].join('; ');
}

/**
 * Where the API is, for a browser that reached this page under `host` (its Host header): `publicUrl` when it is configured,
 * else the REST port of the same host name. A Host header that is no host name counts as localhost.
 */
export function apiUrl(publicUrl: string, host: string | undefined, restPort: number): string {
  if (publicUrl !== '') return publicUrl.replace(/\/$/, '');
  const name = /^([a-z0-9.-]+|\[[0-9a-f:]+\])(:\d+)?$/i.exec(host ?? '')?.[1] ?? 'localhost';
  return `http://${name}:${restPort}`;
}

/** A page that is the same for everybody. */
interface Page {
  readonly contentType: string;
  readonly body: Buffer | string;
}

const html = (body: string): Page => ({ contentType: 'text/html; charset=utf-8', body });
const script = (body: Buffer | string): Page => ({ contentType: 'text/javascript; charset=utf-8', body });

function staticPages(): ReadonlyMap<string, Page> {
  const folder = dirname(fileURLToPath(import.meta.resolve('swagger-ui-dist/package.json')));
  const asset = (name: string): Buffer => readFileSync(join(folder, name));
  return new Map<string, Page>([
    ['/', html(home)],
    ['/reference/', html(reference)],
    ['/reference/initialize.js', script(initialize)],
    ['/reference/swagger-ui-bundle.js', script(asset('swagger-ui-bundle.js'))],
    ['/reference/swagger-ui.css', { contentType: 'text/css; charset=utf-8', body: asset('swagger-ui.css') }],
    ['/reference/favicon-32x32.png', { contentType: 'image/png', body: asset('favicon-32x32.png') }],
  ]);
}

/** Makes the server of the static pages; the caller listens. `restPort` is asked for with each page. */
export function createPageServer(options: { publicUrl: string; restPort: () => number }): HttpServer {
  const pages = staticPages();
  const document = readOpenapiDocument();
  return new HttpServer(({ url = '', method, headers }, response) => {
    const api = apiUrl(options.publicUrl, headers.host, options.restPort());
    const common: [string, string][] = [
      ['content-security-policy', contentSecurityPolicy(api)],
      ['x-content-type-options', 'nosniff'],
      ['referrer-policy', 'no-referrer'],
      ['cross-origin-opener-policy', 'same-origin'],
    ];
    const path = url.replace(/[?#].*$/, '');
    const isRead = method === 'GET' || method === 'HEAD';
    if (isRead && path === '/reference') {
      answer(response, 308, [...common, ['location', '/reference/']], 'text/plain', '');
    } else if (isRead && path === '/reference/openapi.json') {
      answer(response, 200, common, 'application/json', JSON.stringify({ ...document, servers: [{ url: api }] }));
    } else {
      const page = isRead ? pages.get(path) : undefined;
      if (page) answer(response, 200, [...common, ['cache-control', 'no-cache']], page.contentType, page.body);
      else answer(response, 404, common, 'text/plain', 'not found\n');
    }
  });
}
