// Requests to the server of the page. Only its own origin, always with the page's header, never with a token in a URL.

const BASE = new URL("./", import.meta.url);

export class ApiError extends Error {
  constructor(message, code) {
    super(message);
    this.code = code;
  }
}

async function answer(response) {
  const body = await response.json().catch(() => null);
  if (!response.ok) throw new ApiError(body?.message ?? `the server answered ${response.status}`, response.status);
  return body;
}

export async function get(name, parameters = {}, signal) {
  const url = new URL(`data/${name}`, BASE);
  for (const [key, value] of Object.entries(parameters)) {
    if (value !== undefined && value !== null && value !== "") url.searchParams.set(key, value);
  }
  return answer(await fetch(url, { headers: { "X-Kedge-Page": "1" }, signal }));
}

export async function act(name, parameters) {
  return answer(await fetch(new URL(`actions/${name}`, BASE), {
    method: "POST",
    headers: { "X-Kedge-Page": "1", "Content-Type": "application/json" },
    body: JSON.stringify(parameters),
  }));
}

/** The newest request of a view: one that begins while another is under way waits, and only the last is sent. */
export class Latest {
  #running = false;
  #waiting = null;

  run(work) {
    this.#waiting = work;
    if (!this.#running) this.#next();
  }

  async #next() {
    while (this.#waiting) {
      const work = this.#waiting;
      this.#waiting = null;
      this.#running = true;
      try {
        await work(() => this.#waiting !== null);
      } finally {
        this.#running = false;
      }
    }
  }
}
