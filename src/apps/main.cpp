// Entry point: picks the subcommand.
int main() { return 2; }
