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
}

async function post(path, body) {
  const headers = { "Content-Type": "application/json" };
  if (document.body.dataset.csrf) headers["X-CSRF"] = document.body.dataset.csrf;
  const answer = await fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
  const said = await answer.json();
  if (!answer.ok) throw new Error(said.error);
  return said;
}

async function trying(button, work) {
  button.disabled = true;
  tell("");
  try {
    await work();
  } catch (error) {
    tell(error.name === "NotAllowedError" ? "The passkey was not used: cancelled, or it took too long." : error.message);
    button.disabled = false;
  }
}

// The browser hashes the text itself: the passkey signs what was checked here, not a number that came along.
async function assertion(text, rp, keys) {
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
}

async function register(button) {
  const token = location.hash.slice(1);
  let invited;
  try {
    invited = await post("/invitation/challenge", { token });
  } catch (error) {
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
      if (!key) throw new Error("This device makes passkeys of a kind that cannot decide. Use another one.");
      const done = await post("/invitation", {
        token,
        id: text64(made.rawId),
        key: text64(key),
        client: text64(made.response.clientDataJSON),
        data: text64(made.response.getAuthenticatorData()),
      });
      history.replaceState(null, "", location.pathname);
      one("[data-line]").textContent = JSON.stringify({ [done.name]: [done.line] }, null, 1);
      one("[data-invitation]").hidden = true;
      one("[data-registered]").hidden = false;
    }));
}

if (one("[data-sign-in]")) signIn(one("[data-sign-in]"));
if (one("[data-register]")) register(one("[data-register]"));
