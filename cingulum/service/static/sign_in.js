// Signs in with the token after # in the address, which browsers send nowhere, or with one that is typed.
const said = document.getElementById("said");

async function signIn(token) {
  const answer = await fetch(`${document.body.dataset.root}/api/v1/session`, {
    method: "POST",
    headers: {"Content-Type": "application/json", "X-Cingulum": "1"},
    body: JSON.stringify({token}),
  });
  if (answer.ok) location.replace(location.pathname + location.search);
  else said.textContent = (await answer.json()).error.message;
}

document.getElementById("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  signIn(document.getElementById("token").value.trim());
});

if (location.hash.length > 1) signIn(location.hash.slice(1));
