// A completion. Requires Node.js 18: node complete.js. Start the server: python -m weft

const prompt = "Once upon a time, there was a fox who";

async function main() {
  const answer = await fetch(`${process.env.API_URL ?? "http://127.0.0.1:8080"}/completion`, {
    method: "POST",
    body: JSON.stringify({ prompt, n_predict: 64 }),
  });
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error.message);
  console.log(body.content);
}

main();
