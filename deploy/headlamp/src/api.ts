// What the plugin asks of kai-ledger's API, and the parts of the answers that it shows.
// tests/unit/deploy/test_headlamp.py compares paths and fields with those of the API.

/** Where the API is in the cluster, how kai-ledger calls the cluster, and the key that it asks for. */
export interface Place {
  namespace: string;
  service: string;
  port: number;
  cluster: string;
  key: string;
}

export const USUAL_PLACE: Place = {
  namespace: 'kai-system',
  service: 'kai-api',
  port: 8080,
  cluster: 'default',
  key: '',
};

export interface ReasonAnswer {
  message: string;
  pods?: number;
}

export interface Why {
  verdict: string;
  since: string;
  position: number;
  reasons: ReasonAnswer[];
  schedulableIf: ReasonAnswer[];
  notes: string[];
}

export interface GroupRow {
  kind: string;
  namespace: string;
  name: string;
  queue: string;
  minimum: number;
  waiting: number;
  running: number;
  message: string;
}

export interface Listing {
  position: number;
  total: number;
  items: GroupRow[];
}

/** Asks the API server of the cluster that is looked at, as Headlamp's ApiProxy.request does. */
export type Ask = (path: string, options: { headers: Record<string, string> }) => Promise<unknown>;

/** The path by which the API server leads to a service. */
export function proxied(place: Place, path: string): string {
  return `/api/v1/namespaces/${place.namespace}/services/${place.service}:${place.port}/proxy${path}`;
}

// The API server takes the header Authorization for itself.
function options(place: Place): { headers: Record<string, string> } {
  const headers: Record<string, string> = { Accept: 'application/json' };
  if (place.key) {
    headers['X-Kai-Key'] = place.key;
  }
  return { headers };
}

/** Why a pod is where it is, or nowhere. */
export async function why(ask: Ask, place: Place, namespace: string, name: string): Promise<Why> {
  const pod = `${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`;
  const path = `/v1/clusters/${encodeURIComponent(place.cluster)}/pods/${pod}/why`;
  return (await ask(proxied(place, path), options(place))) as Why;
}

/** The groups that wait, or have pods that wait. */
export async function waitingGroups(ask: Ask, place: Place): Promise<Listing> {
  const path = `/v1/clusters/${encodeURIComponent(place.cluster)}/groups?pending=true&limit=200`;
  return (await ask(proxied(place, path), options(place))) as Listing;
}

/** The reasons as lines: how many pods, where it is said, and why. */
export function reasonLines(reasons: ReasonAnswer[]): string[] {
  return reasons.map(reason => (reason.pods ? `${reason.pods} pods: ${reason.message}` : reason.message));
}

/** What went wrong, for people. */
export function problem(error: unknown): string {
  const status = (error as { status?: number }).status;
  if (status === 401) {
    return 'kai-ledger asks for a key: set one in the settings of this plugin';
  }
  if (status === 404) {
    return 'kai-ledger has never heard of it, or its API is elsewhere (settings of this plugin)';
  }
  return error instanceof Error && error.message ? error.message : String(error);
}
