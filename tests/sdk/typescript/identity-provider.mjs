// An OpenID provider for tests: `node identity-provider.mjs PORT ALGORITHM`. Each start makes new keys, so a second start
// at the same port is a rotation. Clients get access tokens in JWT format (RFC 9068) by their own credentials.
import { generateKeyPairSync, randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { Provider } from "oidc-provider";

const [port, algorithm] = [Number(process.argv[2]), process.argv[3]];
const kinds = {
  RS256: ["rsa", { modulusLength: 2048 }],
  PS384: ["rsa", { modulusLength: 2048 }],
  ES256: ["ec", { namedCurve: "P-256" }],
  ES512: ["ec", { namedCurve: "P-521" }],
  EdDSA: ["ed25519", {}],
};
const jwk = (alg) => {
  const [kind, options] = kinds[alg];
  const key = generateKeyPairSync(kind, options).privateKey.export({ format: "jwk" });
  return { ...key, kid: randomUUID(), alg, use: "sig" };
};
const client = (id) => ({
  client_id: id,
  client_secret: "client-secret",
  grant_types: ["client_credentials"],
  redirect_uris: [],
  response_types: [],
});
const server = createServer();
server.listen(port, "127.0.0.1", () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const audience = (resource) => new URL(resource).hostname.split(".")[0];
  const provider = new Provider(issuer, {
    clients: [client("research-app"), client("guest-app")],
    jwks: { keys: [jwk(algorithm), ...(algorithm === "RS256" ? [] : [jwk("RS256")])] },
    ttl: { ClientCredentials: 600 },
    extraTokenClaims: (_, token) => ({ groups: token.clientId === "research-app" ? ["research"] : ["guests"] }),
    features: {
      clientCredentials: { enabled: true },
      devInteractions: { enabled: false },
      resourceIndicators: {
        enabled: true,
        getResourceServerInfo: (_, resource) => ({
          scope: "llm",
          audience: audience(resource),
          accessTokenFormat: "jwt",
          jwt: { sign: { alg: algorithm } },
        }),
      },
    },
  });
  server.on("request", provider.callback());
  console.log(issuer);
});
