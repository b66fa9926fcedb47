// An OpenID provider at which people sign in, for tests: `node sign-in-provider.mjs PORT ALGORITHM REDIRECT`. Each start makes
// new keys, so a second start at the same port is a rotation. The client is `console`. Every login name is a user; `ann` is
// of the group `platform`. As the specification wants it, groups are in the answer of the user endpoint, not in ID tokens.
import { generateKeyPairSync, randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { Provider } from "oidc-provider";

const [port, algorithm, redirect] = [Number(process.argv[2]), process.argv[3], process.argv[4]];
const kinds = { RS256: ["rsa", { modulusLength: 2048 }], ES256: ["ec", { namedCurve: "P-256" }] };
const jwk = (alg) => {
  const [kind, options] = kinds[alg];
  const key = generateKeyPairSync(kind, options).privateKey.export({ format: "jwk" });
  return { ...key, kid: randomUUID(), alg, use: "sig" };
};
const server = createServer();
server.listen(port, "127.0.0.1", () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(issuer, {
    clients: [
      {
        client_id: "console",
        client_secret: "client-secret",
        grant_types: ["authorization_code"],
        redirect_uris: [redirect],
        response_types: ["code"],
        application_type: "native",
        id_token_signed_response_alg: algorithm,
      },
    ],
    claims: { openid: ["sub"], email: ["email"], groups: ["groups"] },
    findAccount: (_, id) => ({
      accountId: id,
      claims: () => ({ sub: id, email: `${id}@example.com`, groups: id === "ann" ? ["staff", "platform"] : ["guests"] }),
    }),
    cookies: { keys: [randomUUID()] },
    jwks: { keys: [jwk(algorithm), ...(algorithm === "RS256" ? [] : [jwk("RS256")])] },
    pkce: { required: () => true },
  });
  server.on("request", provider.callback());
  console.log(issuer);
});
