// Decides what a report of npm audit means.

/** What is known about the packages: the exit code of `make audit`, and lines to print. */
export interface AuditVerdict {
  /** 0: no advisory; 1: advisories; 3: unknown. */
  readonly code: 0 | 1 | 3;
  readonly lines: readonly string[];
}

interface Vulnerability {
  readonly name: string;
  readonly severity: string;
  readonly range: string;
}

const isObject = (value: unknown): value is Record<string, unknown> => typeof value === 'object' && value !== null;

const isVulnerability = (value: unknown): value is Vulnerability =>
  isObject(value) && ['name', 'severity', 'range'].every((field) => typeof value[field] === 'string');

/** Judges the output of `npm audit --json`. What is no report, such as an error of the network, is not taken for a clean one. */
export function judge(output: string): AuditVerdict {
  const report = parsed(output);
  if (!isObject(report) || report['auditReportVersion'] !== 2 || !isObject(report['vulnerabilities'])) {
    return {
      code: 3,
      lines: [
        'NOT AUDITED: the database of advisories cannot be reached from here, so nothing is known about the packages.',
        'Run make audit where npm reaches its registry.',
      ],
    };
  }
  const all = Object.values(report['vulnerabilities']);
  if (all.length === 0) return { code: 0, lines: ['no package has a known advisory'] };
  return {
    code: 1,
    lines: all.map((one) =>
      isVulnerability(one) ? `${one.severity}: ${one.name} ${one.range}` : 'an advisory that cannot be read',
    ),
  };
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
