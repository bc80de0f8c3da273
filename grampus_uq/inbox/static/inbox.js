"use strict";
// Passkeys, and what a page cannot do without a script. Everything here is also refused by the server where it must be.

const bytes = (text) => Uint8Array.from(atob(text.replace(/-/g, "+").replace(/_/g, "/")), (one) => one.charCodeAt(0));
const text64 = (data) =>
  btoa(Array.from(new Uint8Array(data), (one) => String.fromCharCode(one)).join(""))
    .replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
const one = (selector, within = document) => within.querySelector(selector);
const digest = async (text) => new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text)));

function tell(text) {
  const place = one("[data-told]");
  place.textContent = text;
  place.hidden = !text;
  if (text) place.scrollIntoView({ block: "nearest" }); // a long form scrolls it away from the button that was pressed
}

async function post(path, body) {
  const headers = { "Content-Type": "application/json" };
  if (document.body.dataset.csrf) headers["X-CSRF"] = document.body.dataset.csrf;
  const answer = await fetch(path, { method: "POST", headers, body: JSON.stringify(body) }).catch(() => null);
  const said = await answer?.json().catch(() => null); // null: from something between, or cut off
  if (!said) throw new Error("No answer of the inbox arrived. What you sent may have been stored all the same: look again first.");
  if (!answer.ok) throw new Error(said.error);
  return said;
}

async function trying(button, work, cancel = {}) {
  button.disabled = cancel.disabled = true; // what was sent is not taken back
  tell("");
  try {
    await work();
  } catch (error) {
    tell(error.name === "NotAllowedError" ? "The passkey was not used: cancelled, or it took too long." : error.message);
    button.disabled = false;
  }
  cancel.disabled = false;
}

// The browser hashes the text itself: the passkey signs what was checked here, not a number that came along.
async function assertion(text, rp, keys, more = {}) {
  const found = await navigator.credentials.get({
    publicKey: {
      challenge: await digest(text),
      rpId: rp,
      userVerification: "required",
      allowCredentials: keys.map((id) => ({ type: "public-key", id: bytes(id) })),
    },
  });
  const said = JSON.stringify({
    authenticatorData: text64(found.response.authenticatorData),
    clientDataJSON: text64(found.response.clientDataJSON),
    signature: text64(found.response.signature),
    ...more,
  });
  return { id: text64(found.rawId), signature: "webauthn:" + text64(new TextEncoder().encode(said)) };
}

function signIn(button) {
  button.addEventListener("click", () =>
    trying(button, async () => {
      const { text, rp } = await post("/sign-in/challenge", {});
      const answer = await post("/sign-in", { text, ...(await assertion(text, rp, [])) });
      location.assign(answer.next);
    }));
  button.disabled = false;  // before, a click would have done nothing
  button.focus();
}

async function register(button) {
  const token = location.hash.slice(1);
  let invited;
  try {
    invited = await post("/invitation/challenge", { token });
  } catch (error) {
    one("[data-invited]").hidden = true;
    return tell(error.message);
  }
  one("[data-name]").textContent = invited.name;
  one("[data-role]").textContent = invited.role;
  button.disabled = false;
  button.addEventListener("click", () =>
    trying(button, async () => {
      const made = await navigator.credentials.create({
        publicKey: {
          challenge: await digest(invited.text),
          rp: { id: invited.rp, name: "grampus inbox" },
          user: { id: await digest(invited.name), name: invited.name, displayName: invited.name },
          pubKeyCredParams: [{ type: "public-key", alg: -7 }, { type: "public-key", alg: -8 }],
          authenticatorSelection: { residentKey: "required", userVerification: "required" },
          attestation: "none",
        },
      });
      const key = made.response.getPublicKey();
      if (!key) throw new Error("This device's passkeys are of an unsupported kind. Use another device.");
      const done = await post("/invitation", {
        token,
        id: text64(made.rawId),
        key: text64(key),
        client: text64(made.response.clientDataJSON),
        data: text64(made.response.getAuthenticatorData()),
      });
      history.replaceState(null, "", location.pathname);
      one("[data-line]").textContent = JSON.stringify(done.keys);
      one("[data-counts]").hidden = !done.keys[done.name];
      one("[data-invitation]").hidden = true;
      one("[data-registered]").hidden = false;
    }));
}

if (one("[data-sign-in]")) signIn(one("[data-sign-in]"));
if (one("[data-register]")) register(one("[data-register]"));

// -- times ------------------------------------------------------------------------------------------------------------

// mm:ss, from an hour on h:mm:ss, from a day on days and hours
function clock(seconds) {
  const [days, hours, minutes] = [seconds / 86400, (seconds / 3600) % 24, (seconds / 60) % 60].map(Math.floor);
  if (days) return `${days} d ${hours} h`;
  const two = (number) => String(number).padStart(2, "0");
  return `${hours ? `${hours}:${two(minutes)}` : minutes}:${two(seconds % 60)}`;
}

function showTimes() {
  for (const place of document.querySelectorAll("[data-expires]")) {
    const around = place.closest("[data-now]").dataset; // the server's clock when it answered; this one's goes on from there
    around.since ??= performance.now();
    const left = Number(place.dataset.expires) - Number(around.now) - (performance.now() - Number(around.since)) / 1000;
    const shown = Math.ceil(Math.max(0, left));
    place.textContent = left > 0 ? clock(shown) : "0:00, expired";
  }
}
showTimes();
setInterval(showTimes, 1000);

// -- keys: one letter each, off by a switch, never by a key that is held down or typed into a field -------------------

const keys = one("[data-keys]");
if (keys) {
  keys.checked = localStorage.getItem("keys") !== "off";
  keys.addEventListener("change", () => localStorage.setItem("keys", keys.checked ? "on" : "off"));
}
function onKeys(actions) {
  document.addEventListener("keydown", (event) => {
    if (event.repeat || event.ctrlKey || event.altKey || event.metaKey || event.isComposing) return;
    if (event.key !== "Escape" && (!keys.checked || event.target.closest("textarea, input, select"))) return;
    const action = actions[event.key.toLowerCase()];
    if (!action) return;
    event.preventDefault();
    action();
  });
}

// -- the list ---------------------------------------------------------------------------------------------------------

const title = document.title;
function showCount(count) {
  document.title = count === "0" ? title : `(${count}) ${title}`;
  const badge = one("[data-badge]");
  badge.textContent = count;
  badge.hidden = count === "0";
}

async function fetchList() {
  const place = one("#list[data-mark]");
  if (!place) return true;
  const kept = document.activeElement.closest("[data-row]")?.getAttribute("href");
  const answer = await fetch(location.href);
  if (answer.redirected) return true; // signed out
  const fresh = answer.ok && one("#list", new DOMParser().parseFromString(await answer.text(), "text/html"));
  if (!fresh) return false;
  place.replaceWith(fresh);
  showTimes();
  if (kept) one(`[data-row][href="${CSS.escape(kept)}"]`)?.focus();
  return fresh.dataset.mark === wanted;
}

// One answer at a time, until it is the list that the news name: a list may be older than they, late, or not come at all.
let wanted = "", fetching = false;
async function showList() {
  if (fetching) return;
  fetching = true;
  while (one("#list[data-mark]") && one("#list").dataset.mark !== wanted && !(await fetchList().catch(() => false)))
    await new Promise((done) => setTimeout(done, 1000));
  fetching = false;
}

function listen() {
  const news = new EventSource("/requests/news");
  news.addEventListener("message", (event) => {
    const told = JSON.parse(event.data);
    showCount(told.count);
    wanted = told.mark;
    showList();
  });
  news.addEventListener("error", () => {
    if (news.readyState !== EventSource.CLOSED) return; // the browser asks again by itself
    showCount("?");
    setTimeout(() => fetchList().catch(() => false).then(listen), 10_000);
  });
}
if (one("[data-badge]")) listen();

if (one("#list")) {
  const move = (by) => {
    const rows = [...document.querySelectorAll("[data-row]")];
    const at = rows.indexOf(document.activeElement);
    rows[Math.min(rows.length - 1, Math.max(0, at < 0 ? 0 : at + by))]?.focus();
  };
  onKeys({ j: () => move(1), k: () => move(-1) });
}

// -- a card -----------------------------------------------------------------------------------------------------------

const LINE = 24, COLUMN = 40, LOOK_MS = 100; // pixels; a line counts when two looks in a row found it on the screen

// `work` is done once each line of every call was on the screen, above the panel, in its whole width. What is watched is
// the call from its first to its last pixel, column by column, with what sticks out of its box: a jump to its end leaves
// out what it jumped over, a page zoomed in what is beside the screen, and a change of its size begins anew.
function whenSeen(panel, work) {
  const parts = [...document.querySelectorAll("[data-part]")].map((part) => ({ part, size: "", shown: null, columns: [] }));
  const unread = one("[data-unread]", panel);
  const seenTo = (seen) => (seen.length && seen[0][0] < 1 ? seen[0][1] : 0);
  const missing = ({ columns, end }) => columns.find(({ seen }) => !seen.length || seenTo(seen) <= end - 1);
  const whole = (kept) => kept.columns.length > 0 && !missing(kept);
  const shows = ({ left, right }, [from, to]) => left >= from - 1 && right <= to + 1;

  function look() {
    const screen = window.visualViewport, roof = screen.offsetTop, side = screen.offsetLeft;
    const floor = Math.min(panel.getBoundingClientRect().top, roof + screen.height);
    for (const kept of parts) {
      const { top, left, width: box, height } = kept.part.getBoundingClientRect();
      const line = Math.min(LINE, height), width = Math.max(box, kept.part.scrollWidth);
      if (kept.size !== `${width} ${height}`) {
        const places = Array.from({ length: Math.ceil(width / COLUMN) }, (_, number) => number * COLUMN);
        const columns = places.map((from) => ({ left: from, right: Math.min(from + COLUMN, width), seen: [] }));
        Object.assign(kept, { size: `${width} ${height}`, shown: null, columns });
      }
      const rows = [Math.max(0, roof - top), Math.min(height, floor - top) - line], before = kept.shown;
      kept.end = height - line;
      kept.shown = document.visibilityState === "visible" && rows[0] <= rows[1] ? { rows, across: [side - left, side + screen.width - left] } : null;
      if (!kept.shown || !before) continue;
      const stood = [Math.max(before.rows[0], rows[0]), Math.min(before.rows[1], rows[1])];
      if (stood[0] > stood[1]) continue;
      for (const column of kept.columns)
        if (shows(column, before.across) && shows(column, kept.shown.across)) column.seen = joined([...column.seen, stood]);
    }
    if (!parts.every(whole)) return;
    clearInterval(looking);
    const focused = unread.contains(document.activeElement);
    unread.hidden = true;
    work();
    if (focused) one("[data-do]", panel).focus();
  }

  one("[data-next]", unread).addEventListener("click", () => {
    const next = parts.find((part) => !whole(part));
    if (!next || !next.columns.length) return;
    const { left: side, top } = next.part.getBoundingClientRect(), column = missing(next);
    const beside = side + column.right > window.innerWidth || side + column.left < 0;
    window.scrollBy({ top: top + seenTo(column.seen) - 8, left: beside ? side + column.left - 8 : 0, behavior: "instant" });
  });
  const looking = setInterval(look, LOOK_MS);
}

function joined(ranges) {
  const apart = [];
  for (const [from, to] of ranges.sort((a, b) => a[0] - b[0])) {
    const last = apart.at(-1);
    if (last && from <= last[1] + 1) last[1] = Math.max(last[1], to);
    else apart.push([from, to]);
  }
  return apart;
}

// What differs, in an element of this name, between what both texts have alike; cut at words and escapes.
function marked(name, text, other) {
  const [mine, others] = [text, other].map((one) => one.match(/\\u[0-9a-f]{4}|\\.|[\p{L}\p{N}]+|./gsu) ?? []);
  const least = Math.min(mine.length, others.length);
  let from = 0, behind = 0;
  while (from < least && mine[from] === others[from]) from++;
  while (behind < least - from && mine.at(-1 - behind) === others.at(-1 - behind)) behind++;
  const place = document.createElement("span"), differs = document.createElement(name);
  differs.textContent = mine.slice(from, mine.length - behind).join("");
  place.append(mine.slice(0, from).join(""), differs, mine.slice(mine.length - behind).join(""));
  return place;
}

function showChanges(changes) {
  const rows = changes.map((change) => {
    const row = document.createElement("tr");
    const { name, before, after } = change;
    for (const [label, shown] of [["Argument", name], ["Before", before && marked("del", before, after)], ["After", after && marked("ins", after, before)]]) {
      const cell = document.createElement("td");
      if (label !== "Argument") cell.className = "t";
      cell.dataset.label = label;
      cell.append(shown || "–");
      row.append(cell);
    }
    return row;
  });
  one("[data-changes] tbody").replaceChildren(...rows);
  one("[data-changes]").hidden = !rows.length;
}

// -- what became of a decided call: asked for until no more will be known, ever less often ----------------------------

async function follow(place) {
  for (let pause = 1000; ; pause = Math.min(pause * 1.2, 15_000)) {
    const asked = performance.now();
    const answer = await fetch(`/requests/${place.dataset.fate}/fate`).catch(() => null);
    if (answer?.redirected) return; // signed out
    const said = answer?.ok ? await answer.json().catch(() => null) : null;
    if (said && place.textContent !== said.told) place.textContent = said.told;
    if (said) [place.hidden, place.dataset.ran] = [!said.told, said.ran];
    const panel = one("[data-decide]");
    if (said?.over && panel && !panel.contains(place)) panel.hidden = true; // there is nothing left to decide
    if (said?.over) return;
    const rest = Math.max(pause, 10 * (performance.now() - asked)); // an audit of ten thousand entries takes a while
    await new Promise((done) => setTimeout(done, rest));
  }
}

// What the person is told, with what becomes of the call of each of these requests, in place of the panel.
function decided(panel, told, ids) {
  const rows = told.flatMap((text, number) => {
    const fate = Object.assign(document.createElement("p"), { className: "note", hidden: true });
    fate.dataset.fate = ids[number];
    follow(fate);
    return [Object.assign(document.createElement("p"), { className: "note", textContent: text }), fate];
  });
  const link = Object.assign(document.createElement("a"), { href: "/requests", className: "button", textContent: "Next" });
  panel.replaceChildren(...rows, link);
  panel.setAttribute("role", "status");
  link.focus();
}
document.querySelectorAll("[data-fate]").forEach(follow);

function deciding(panel) {
  const card = one("#card");
  const path = `/requests/${card.dataset.id}`;
  const choices = [...panel.querySelectorAll("[data-do]")];
  const send = one("[data-send]", panel), cancel = one("[data-cancel]", panel);
  const parts = { edit: one("[data-edit]"), reason: one("[data-reason]"), never: one("[data-never-label]") };
  let kind = "", prepared = null, seen = false;
  panel.hidden = false;

  function choose(next) {
    kind = next;
    prepared = null;
    tell("");
    showChanges([]);
    for (const button of choices) button.hidden = !!kind;
    send.hidden = cancel.hidden = !kind;
    send.disabled = false;
    parts.edit.hidden = kind !== "edit";
    parts.reason.hidden = !kind;
    parts.never.hidden = kind !== "reject" || !one("[data-do=edit]", panel);
    one("[data-reason-label]").textContent = kind === "respond" ? "Text that the model reads instead of the result" : "Reason, for the model (optional)";
    send.textContent = { approve: "Sign: approve", edit: "Show the change", reject: "Sign: reject", respond: "Sign: respond" }[kind] || "";
    send.className = kind === "reject" ? "stop" : "";
    (kind === "edit" ? one("textarea, select", parts.edit) : kind === "respond" ? one("#message") : kind ? send : choices[0]).focus();
  }

  const fields = one("[data-fields]", parts.edit);
  const without = (field) => one("[data-without]", field.closest(".field"));
  const said = () => [...fields.querySelectorAll("[data-field]")].map((field) => (without(field)?.checked ? null : field.value));
  const edit = () => (fields ? { fields: { mark: fields.dataset.fields, texts: said() } } : { arguments: one("#arguments").value });

  async function prepare() {
    const said = await post(`${path}/prepare`, {
      kind, digest: card.dataset.digest, seen: one("[data-seen]").dataset.seen,
      message: one("#message").value || null, ...(kind === "edit" ? edit() : {}), never: kind === "reject" && one("#never").checked,
    });
    const signed = JSON.parse(said.text.slice(said.text.indexOf("\n") + 1));
    if (signed.digest !== card.dataset.digest || signed.kind !== kind) throw new Error("The server returned a different decision to sign than requested.");
    return said;
  }

  async function sign() {
    if (kind === "edit" && !prepared) {
      prepared = await prepare();
      showChanges(prepared.changes);
      parts.edit.hidden = parts.reason.hidden = true;
      send.textContent = "Sign: run it with this change";
      send.disabled = false;
      send.focus();
      return;
    }
    const said = prepared || (await prepare());
    const answer = await assertion(said.text, said.rp, said.keys);
    const done = await post(`${path}/decide`, { decision: said.decision, seen: one("[data-seen]").dataset.seen, ...answer });
    decided(panel, [done.told], [card.dataset.id]);
  }

  whenSeen(panel, () => {
    seen = true;
    for (const button of choices) button.disabled = false;
  });
  for (const button of choices) button.addEventListener("click", () => choose(button.dataset.do));
  cancel.addEventListener("click", () => choose(""));
  send.addEventListener("click", () => trying(send, sign, cancel));
  parts.edit.addEventListener("input", (event) => {
    prepared = null;
    if (event.target.matches("[data-field]") && without(event.target)) without(event.target).checked = false;
  });
  const press = (name) => () => (seen || !["approve", "edit"].includes(name)) && !kind && one(`[data-do=${name}]`, panel)?.click();
  onKeys({ a: press("approve"), e: press("edit"), r: press("reject"), escape: () => (kind ? cancel.click() : location.assign("/requests")) });
}

if (one("[data-decide]")) deciding(one("[data-decide]"));

// -- a batch: one touch signs the list of the hashes of texts that were each checked here ---------------------------

const hex = (data) => Array.from(data, (byte) => byte.toString(16).padStart(2, "0")).join("");
const kinds = ["grampus_uq decision ", "grampus_uq answer to a drill "];

function batch(panel) {
  const calls = [...document.querySelectorAll("[data-call]")];
  const choices = [...panel.querySelectorAll("[data-do]")], boxes = calls.map((call) => one("[data-in]", call));
  const send = one("[data-send]", panel), cancel = one("[data-cancel]", panel), reason = one("[data-reason]", panel);
  let kind = "", seen = false;
  panel.hidden = false;
  const chosen = () => calls.filter((call, number) => boxes[number].checked);

  function choose(next) {
    kind = next;
    tell("");
    for (const button of choices) button.hidden = !!kind;
    for (const box of boxes) box.disabled = !!kind;
    send.hidden = cancel.hidden = reason.hidden = !kind;
    send.disabled = false;
    send.className = kind === "reject" ? "stop" : "";
    send.textContent = `Sign: ${kind} ${chosen().length}`;
    (kind ? send : choices[0]).focus();
  }

  function count() {
    calls.forEach((call, number) => call.classList.toggle("out", !boxes[number].checked));
    const enough = chosen().length > 1;
    for (const button of choices) button.disabled = !enough || (button.dataset.do === "approve" && !seen);
    tell(enough ? "" : "A batch needs at least two calls. Decide a single call individually.");
  }

  async function sign() {
    const mine = chosen();
    const given = mine.map((call) => [call.dataset.id, call.dataset.digest, one("[data-seen]", call).dataset.seen]);
    const said = await post("/requests/alike/prepare", { kind, message: one("#message").value || null, calls: given });
    if (said.texts.length !== mine.length) throw new Error("The server returned different decisions to sign than requested.");
    const digests = [];
    for (const [number, text] of said.texts.entries()) {
      const signed = JSON.parse(text.slice(text.indexOf("\n") + 1));
      if (!kinds.some((head) => text.startsWith(head)) || signed.digest !== mine[number].dataset.digest || signed.kind !== kind) throw new Error("The server returned a different decision to sign than requested.");
      digests.push(hex(await digest(text)));
    }
    const answer = await assertion(["grampus_uq batch 1", ...digests].join("\n"), said.rp, said.keys, { batch: digests });
    const signed = given.map(([id, , token], number) => [id, said.decisions[number], token]);
    const done = await post("/requests/alike/decide", { calls: signed, ...answer });
    decided(panel, done.told, given.map(([id]) => id));
  }

  whenSeen(panel, () => {
    seen = true;
    count();
  });
  for (const box of boxes) box.addEventListener("change", count);
  for (const button of choices) button.addEventListener("click", () => choose(button.dataset.do));
  cancel.addEventListener("click", () => choose(""));
  send.addEventListener("click", () => trying(send, sign, cancel));
}

if (one("[data-batch]")) batch(one("[data-batch]"));

const labels = [...document.querySelectorAll("[data-label]")];
if (labels.length) onKeys(Object.fromEntries(labels.map((button) => [button.dataset.label, () => button.click()])));

// -- permits and delegations: what is shown is what the passkey signs ------------------------------------------------

function signing(form) {
  const { signed: path, what } = form.dataset;
  const [show, back, sign] = ["show", "back", "sign"].map((name) => one(`[data-signed-${name}]`, form));
  const fields = one("[data-signed-fields]", form), promise = one("[data-promise]", form);
  let prepared = null;
  form.hidden = false;

  function toggle(shown) {
    fields.hidden = show.hidden = shown;
    promise.hidden = back.hidden = sign.hidden = !shown;
    show.disabled = sign.disabled = false;
    (shown ? sign : show).focus();
  }

  function wish() {
    const said = form.dataset.narrows ? { narrows: form.dataset.narrows } : {};
    for (const field of fields.querySelectorAll("[name]")) {
      const number = field.hasAttribute("data-number");
      if (number && field.value.trim() && !/^\d+(\.\d+)?$/.test(field.value.trim())) throw new Error(`${field.labels[0].textContent}: write a number like 12 or 2.5.`);
      if (field.type === "checkbox") said[field.name] = field.checked;
      else if (field.hasAttribute("data-lines")) said[field.name] = field.value.split("\n");
      else if (!number) said[field.name] = field.value;
      else if (field.value.trim()) said[field.name] = Number(field.value);
    }
    return said;
  }

  show.addEventListener("click", () => trying(show, async () => {
    prepared = await post(`${path}/prepare`, wish());
    if (!prepared.text.startsWith(`grampus_uq ${what} `)) throw new Error(`The server returned something other than a ${what} to sign.`);
    const rows = Object.entries(prepared.told).flatMap(([name, text]) => [
      Object.assign(document.createElement("dt"), { textContent: name }), Object.assign(document.createElement("dd"), { textContent: text })]);
    one("dl", promise).replaceChildren(...rows);
    one("pre", promise).textContent = prepared.text.replace(/[^\n -~]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`);
    toggle(true);
  }));
  back.addEventListener("click", () => toggle(false));
  sign.addEventListener("click", () => trying(sign, async () => {
    const { text, rp, keys, told, ...given } = prepared;
    const done = await post(path, { ...given, ...(await assertion(text, rp, keys)) });
    location.assign(done.next);
  }));
  form.addEventListener("submit", (event) => event.preventDefault());
}

if (one("[data-signed]")) signing(one("[data-signed]"));
